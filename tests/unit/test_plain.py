from __future__ import annotations

import json

import pytest

from fk_core.plain import clean, clean_text, document


@pytest.mark.parametrize(
    ("dirty", "cleaned"),
    [
        ("plain é 漢 🙂\n\tx", "plain é 漢 🙂\n\tx"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07", "\ufffd".join(["0;title", ""])),
        ("a\r\nb", "a\nb"),
        ("a\0b", "a\ufffdb"),
        ("\ud800x\udfff", "\ufffdx\ufffd"),
    ],
)
def test_text(dirty: str, cleaned: str) -> None:
    assert clean_text(dirty) == cleaned
    clean_text(dirty).encode("utf-8")


def test_values() -> None:
    dirty = {"a\ud800": [float("nan"), float("-inf"), 1.5, 2, True, None, ("x\0",)]}
    assert clean(dirty) == {"a\ufffd": [None, None, 1.5, 2, True, None, ["x\ufffd"]]}
    assert json.loads(document(dirty)) == clean(dirty)
