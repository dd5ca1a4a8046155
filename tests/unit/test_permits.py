"""Which libraries a caller can allow a candidate to import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fk_core
from fk_core.child import production
from fk_core.child.baselines.base import policy_libraries
from fk_core.errors import RequestError
from fk_core.permits import check_allowed


def test_every_production_library_can_be_allowed() -> None:
    check_allowed([*production.LIBRARIES, *policy_libraries()])
    check_allowed([])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("nonsense", ""), ("vlm", "vllm"), ("VLLM", ""), ("vllm.model_executor", "vllm"), ("torch", ""), ("", "")],
)
def test_another_name_is_refused_with_those_there_are(name: str, nearest: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_allowed(["vllm", name])
    assert repr(name) in caught.value.message
    assert nearest in caught.value.message
    assert "flash_attn, " in caught.value.hint


def test_the_guards_know_the_same_libraries() -> None:
    """They stand in a module that imports torch, which the harness must not."""
    tree = ast.parse((Path(fk_core.__file__).parent / "child" / "guards.py").read_text(encoding="utf-8"))
    named = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PRODUCTION_LIBRARIES"
    )
    assert isinstance(named, ast.Tuple)
    found = [
        word for part in named.elts for word in ast.literal_eval(part.value if isinstance(part, ast.Starred) else part)
    ]
    assert tuple(found) == production.LIBRARIES
