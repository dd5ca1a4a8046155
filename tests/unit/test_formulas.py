from __future__ import annotations

import pytest

from fk_core.formulas import FormulaError, evaluate, names

VALUES = {"tokens": 7, "hidden": 4096, "itemsize": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("tokens", 7),
        ("(4 * tokens * hidden + hidden) * itemsize", 237568),
        ("hidden // 3 - 1", 1364),
        ("hidden / 2", 2048),
        ("ceil(tokens / 2)", 4),
        ("-tokens + 2 ** 3", 1),
        ("max(tokens, 3) + min(1, 2, 3)", 8),
        (" 12 ", 12),
    ],
)
def test_arithmetic(text: str, value: int) -> None:
    assert evaluate(text, VALUES) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "tokens +",
        "1.5 * tokens",
        "tokens / 2",
        "tokens % 2",
        "tokens // 0",
        "tokens / (7 - tokens)",
        "unknown",
        "True",
        "'a' * 3",
        "[1, 2]",
        "tokens if hidden else 1",
        "tokens < hidden",
        "(lambda: 1)()",
        "__import__('os')",
        "tokens.__class__",
        "open('x')",
        "min(tokens)",
        "ceil(1, 2)",
        "max(1, 2, key=tokens)",
        "2 ** tokens ** 9",
        "2 ** 10000",
        "hidden ** 64",
        "9" * 400,
        "tokens; hidden",
        "(" * 150 + "1" + ")" * 140,
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(FormulaError):
        evaluate(text, VALUES)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FormulaError, match=r"'width'; known: hidden, itemsize, tokens"):
        evaluate("2 * width", VALUES)


def test_values_that_are_no_whole_numbers_are_refused() -> None:
    for value in (1.0, True, "3", None):
        with pytest.raises(FormulaError):
            evaluate("tokens", {"tokens": value})  # type: ignore[dict-item]


def test_names_leaves_functions_out() -> None:
    assert names("ceil(tokens / 2) * max(hidden, 1)") == {"tokens", "hidden"}


@pytest.mark.parametrize(
    "text", ["open('x')", "f(tokens)", "tokens % 2", "1.5", "tokens.x", "[tokens]", "(lambda: 1)()"]
)
def test_names_refuses_what_no_values_could_make_a_formula(text: str) -> None:
    with pytest.raises(FormulaError):
        names(text)
