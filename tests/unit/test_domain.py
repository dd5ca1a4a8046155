"""What a candidate may declare, and what a declaration means for cases and hidden shapes."""

from __future__ import annotations

import pytest

from fk_core.catalog import Catalog
from fk_core.domain import EVERYTHING, BadDomain, declared, runtime_dims, share, unknown_sizes

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
        ("SUPPORTS = {'dtype': []}", "at least one of bfloat16, float32"),
        ("SUPPORTS = dict(hidden=[4096])", "literal dict. Write it once"),
        ("SUPPORTS: dict", "no plain assignment"),
        ("if 1:\n    SUPPORTS = {'hidden': [4096]}", "(line 2) is no plain assignment"),
        ("SUPPORTS, other = {'hidden': [4096]}, 1", "no plain assignment"),
        ("SUPPORTS = {'hidden': [4096]}\nif 1:\n    SUPPORTS = {}", "(line 3) is no plain assignment"),
        ("SUPPORTS = {}\nSUPPORTS |= {'hidden': [4096]}", "no plain assignment"),
        ("SUPPORTS = {}\nSUPPORTS['hidden'] = [4096]", "changed behind"),
        ("SUPPORTS = {}\nSUPPORTS.update(hidden=[4096])", "changed behind"),
        ("for SUPPORTS in ({},):\n    pass", "no plain assignment"),
        ("print(SUPPORTS := {'hidden': [4096]})", "no plain assignment"),
        ("from shapes import SUPPORTS", "is imported"),
        ("from shapes import all_of_them as SUPPORTS", "is imported"),
        ("def SUPPORTS():\n    return {}", "is a function"),
        ("class SUPPORTS:\n    pass", "is a class"),
        ("SUPPORTS = {'hidden': [4096]}\nSUPPORTS = {}", "(line 2) is assigned in line 1 already"),
        ("SUPPORTS = {}; SUPPORTS: dict = {}", "(line 1) is assigned in line 1 already"),
        ("try:\n    pass\nexcept OSError as SUPPORTS:\n    pass", "no plain assignment"),
        ("match {}:\n    case SUPPORTS:\n        pass", "no plain assignment"),
        ("match {}:\n    case {**SUPPORTS}:\n        pass", "no plain assignment"),
        ("match []:\n    case [*SUPPORTS]:\n        pass", "no plain assignment"),
        ("import SUPPORTS.shapes", "is imported"),
        ("SUPPORTS = {}\n[0 for SUPPORTS['hidden'] in ([4096],)]", "changed behind"),
        ("[(SUPPORTS := {}) for _ in (0,)]", "no plain assignment"),
        ("def declare():\n    global SUPPORTS\n    SUPPORTS = {}", "bound by a function"),
        ("SUPPORTS = {'hidden': [4096]}\ndel SUPPORTS", "is deleted"),
        ("class RMSNorm:\n    SUPPORTS = {'hidden': [4096]}", "stands in a class"),
    ],
)
def test_a_declaration_that_can_not_be_used_is_explained(text: str, said: str) -> None:
    with pytest.raises(BadDomain) as caught:
        declared(text, SPEC)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "SUPPORTS: dict = {'hidden': [4096]}",
        "SUPPORTS: dict[str, list[int]] = {'hidden': [4096]}\nprint(SUPPORTS['hidden'], SUPPORTS.get('dtype'))",
        "SUPPORTS = DOMAIN = {'hidden': [4096]}",
        "SUPPORTS = {'hidden': [4096]}\nprint([SUPPORTS for SUPPORTS in (1, 2)], {n: 1 for n, *SUPPORTS in ((1, 2),)})",
        "SUPPORTS = {'hidden': [4096]}\nlater = lambda: SUPPORTS.update(hidden=[1])",
        "SUPPORTS = {'hidden': [4096]}\nimport numpy.SUPPORTS",
        "def other():\n    SUPPORTS = []\n    SUPPORTS[0] = 1\nSUPPORTS = {'hidden': [4096]}",
    ],
)
def test_plain_assignments_declare(text: str) -> None:
    assert declared(text, SPEC).exact == {"hidden": {4096}}


@pytest.mark.parametrize("name", Catalog().names())
def test_what_an_error_says_to_write_can_be_used(name: str) -> None:
    spec = Catalog().get(name)
    with pytest.raises(BadDomain) as caught:
        declared("SUPPORTS = make()", spec)
    example = str(caught.value).partition("for example ")[2]
    domain = declared(example, spec)
    assert domain.covers(spec.cases[0].dims, spec.cases[0].dtype)
    assert not unknown_sizes(spec, domain)


def test_exact_sizes_that_no_case_has_are_told() -> None:
    assert unknown_sizes(SPEC, declared("SUPPORTS = {'hidden': [128, 4096]}", SPEC)) == []
    (told,) = unknown_sizes(SPEC, declared("SUPPORTS = {'hidden': [8192, 4096, 5120]}", SPEC))
    assert told == (
        "SUPPORTS['hidden'] lists 5120, 8192, which no case has, so it was not tried; cases have 128, 2880, 4096"
    )
    (told,) = unknown_sizes(SPEC, declared(f"SUPPORTS = {{'hidden': {[4096, *range(100)]}}}", SPEC))
    assert "lists 0, 1, 2, 3, 4, 5, 6, 7, ..., which" in told


@pytest.mark.parametrize("sizes", [(5000, 5000), (0, 0), (4097, 99999)])
def test_a_range_of_sizes_in_which_no_case_lies_is_told(sizes: tuple[int, int]) -> None:
    (told,) = unknown_sizes(SPEC, declared(f"SUPPORTS = {{'hidden': {sizes}}}", SPEC))
    assert told == f"SUPPORTS['hidden'] is {sizes}, in which no case lies; cases have 128, 2880, 4096"
    assert unknown_sizes(SPEC, declared("SUPPORTS = {'hidden': (2880, 2880), 'tokens': (1, 99999)}", SPEC)) == []


def test_an_error_says_whether_it_is_about_what_models_ask_for() -> None:
    """Which are sizes of GPUs: on a CPU the reader is told those of its cases, too."""
    for text, captured in (("SUPPORTS = {'hidden': [4096], 'tokens': (1, 64)}", True), ("SUPPORTS = []", False)):
        with pytest.raises(BadDomain) as caught:
            declared(text, SPEC)
        assert caught.value.captured is captured


def test_names_of_dtypes_are_checked() -> None:
    spec = Catalog().get("rms_norm")
    assert declared('SUPPORTS = {"dtype": ["bf16", "torch.float32"]}', spec).dtypes == {"bfloat16", "float32"}
    for named in ("float99", "bf16x", ""):
        with pytest.raises(BadDomain, match="has bfloat16"):
            declared(f'SUPPORTS = {{"dtype": ["bfloat16", "{named}"]}}', spec)
    with pytest.raises(BadDomain, match="dtype is a key"):
        declared('SUPPORTS = {"dtypes": ["bfloat16"]}', spec)
