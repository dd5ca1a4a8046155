"""What a candidate may declare, and what a declaration means for cases and hidden shapes."""

from __future__ import annotations

import pytest

from fk_core.catalog import Catalog
from fk_core.domain import EVERYTHING, BadDomain, declared, runtime_dims, share

SPEC = Catalog().get("rms_norm")


def test_rows_vary_at_run_time_and_widths_do_not() -> None:
    assert runtime_dims(SPEC) == {"tokens"}
    assert runtime_dims(Catalog().get("silu_and_mul")) == {"tokens"}
    assert runtime_dims(Catalog().get("softmax")) == {"rows"}


def test_an_undeclared_domain_is_everything() -> None:
    assert declared("x = 1", SPEC) == EVERYTHING
    assert declared("def broken(:", SPEC) == EVERYTHING
    assert share(SPEC.cases, EVERYTHING) == 1.0


def test_exact_widths_and_ranges_of_rows_decide_what_is_covered() -> None:
    domain = declared('SUPPORTS = {"hidden": [4096], "tokens": (1, 16384), "dtype": ["bfloat16"]}', SPEC)
    assert domain.covers({"tokens": 7, "hidden": 4096}, "bfloat16")
    assert not domain.covers({"tokens": 7, "hidden": 4128}, "bfloat16")
    assert not domain.covers({"tokens": 7, "hidden": 4096}, "float32")
    assert not domain.covers({"tokens": 16385, "hidden": 4096}, "bfloat16")
    inside = [c for c in SPEC.cases if c.dims["hidden"] == 4096]
    expected = sum(c.calls or 1 for c in inside) / sum(c.calls or 1 for c in SPEC.cases)
    assert share(SPEC.cases, domain) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SUPPORTS = make()", "literal"),
        ("SUPPORTS = [4096]", "must be a dict"),
        ("SUPPORTS = {'width': [4096]}", "dimensions of rms_norm are hidden, tokens"),
        ("SUPPORTS = {'tokens': [1, 64]}", "varies at run time"),
        ("SUPPORTS = {'hidden': [4096], 'tokens': (1, 64)}", "1 to 16384"),
        ("SUPPORTS = {'hidden': []}", "list of whole numbers, or a range"),
        ("SUPPORTS = {'hidden': (64, 4096, 32)}", "list of whole numbers, or a range"),
        ("SUPPORTS = {'hidden': [True]}", "list of whole numbers, or a range"),
        ("SUPPORTS = {'hidden': (4096, 64)}", "(lowest, highest)"),
        ("SUPPORTS: dict = {'width': [4096]}", "dimensions of rms_norm are hidden, tokens"),
        ("SUPPORTS = {4: [4096]}", "key of type int"),
        ("SUPPORTS = {'hidden': [" + "0x" + "f" * 5000 + "]}", "list of whole numbers"),
        ("SUPPORTS = {0x" + "f" * 5000 + ": [1]}", "key of type int"),
        ("SUPPORTS = {'dtype': 'bfloat16'}", "list of torch dtype names"),
    ],
)
def test_a_declaration_that_can_not_be_used_is_explained(text: str, said: str) -> None:
    with pytest.raises(BadDomain) as caught:
        declared(text, SPEC)
    assert said in str(caught.value)


def test_names_of_dtypes_are_checked() -> None:
    spec = Catalog().get("rms_norm")
    assert declared('SUPPORTS = {"dtype": ["bf16", "torch.float32"]}', spec).dtypes == {"bfloat16", "float32"}
    for named in ("float99", "bf16x", ""):
        with pytest.raises(BadDomain, match="has bfloat16"):
            declared(f'SUPPORTS = {{"dtype": ["bfloat16", "{named}"]}}', spec)
    with pytest.raises(BadDomain, match="dtype is a key"):
        declared('SUPPORTS = {"dtypes": ["bfloat16"]}', spec)
