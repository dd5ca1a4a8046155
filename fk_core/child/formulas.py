"""Arithmetic over named dimensions, as task files write shapes, bytes and FLOPs: ``(2 * tokens + 1) * hidden``.

Whole numbers, names, ``+ - * // / **``, ``min``, ``max`` and ``ceil``; everything else is refused. Standard library
only, as both sides of the wall evaluate shapes. ``/`` is exact (a fraction); a result that is no whole number is an
error unless ``ceil`` rounds it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

MAX_TEXT = 300
MAX_VALUE = 1 << 80
MAX_EXPONENT = 64

FUNCTIONS = ("min", "max", "ceil")
ALLOWED = (
    ast.Constant, ast.Name, ast.Load, ast.Call, ast.UnaryOp, ast.USub, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow,
)  # fmt: skip

Exact = int | Fraction


class FormulaError(ValueError):
    """The text is no formula, or has no whole value; the message says where."""


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """The whole number that ``text`` gives for ``values``.

    Raises ``FormulaError`` for anything but plain arithmetic, for an unknown name, and for a value that is not whole.
    """
    result = _value(_parse(text), values, text)
    if isinstance(result, Fraction):
        if result.denominator != 1:
            raise FormulaError(f"formula {text!r} gives {result}, which is no whole number; use // or ceil(...)")
        result = int(result)
    return result


def names(text: str) -> frozenset[str]:
    """The dimension names that a formula uses. Raises ``FormulaError`` for what no values could make a formula."""
    tree = _parse(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED) or (isinstance(node, ast.Constant) and type(node.value) is not int):
            raise FormulaError(f"formula {text!r} may not contain {type(node).__name__}")
        if id(node) in called and not (isinstance(node, ast.Name) and node.id in FUNCTIONS):
            raise FormulaError(f"formula {text!r} may call {', '.join(FUNCTIONS)} only")
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        raise FormulaError(f"a formula is text such as '2 * tokens', not {text!r}")
    if len(text) > MAX_TEXT:
        raise FormulaError(f"a formula of {len(text)} characters; at most {MAX_TEXT} are read")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"{text!r} is no arithmetic: {error}") from None


def _value(node: ast.expr, values: Mapping[str, int], text: str) -> Exact:
    result: Exact
    if isinstance(node, ast.Constant) and type(node.value) is int:
        result = node.value
    elif isinstance(node, ast.Name):
        if node.id not in values:
            raise FormulaError(f"formula {text!r} names {node.id!r}; known: {', '.join(sorted(values)) or 'nothing'}")
        result = values[node.id]
        if type(result) is not int:
            raise FormulaError(f"formula {text!r}: {node.id} is {result!r}, not a whole number")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        result = -_value(node.operand, values, text)
    elif isinstance(node, ast.BinOp):
        result = _binary(node, values, text)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        result = _call(node.func.id, [_value(argument, values, text) for argument in node.args], text)
    else:
        raise FormulaError(f"formula {text!r} may not contain {type(node).__name__}")
    if not -MAX_VALUE <= result <= MAX_VALUE:
        raise FormulaError(f"formula {text!r} grows beyond {MAX_VALUE}")
    return result


def _binary(node: ast.BinOp, values: Mapping[str, int], text: str) -> Exact:
    left, right = _value(node.left, values, text), _value(node.right, values, text)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() | ast.Div() if right == 0:
            raise FormulaError(f"formula {text!r} divides by zero")
        case ast.FloorDiv():
            return left // right
        case ast.Div():
            return Fraction(left) / Fraction(right)
        case ast.Pow():
            if not isinstance(right, int) or not 0 <= right <= MAX_EXPONENT:
                raise FormulaError(f"formula {text!r}: an exponent must be a whole number from 0 to {MAX_EXPONENT}")
            # Both are bounded, so the power has at most 80 * 64 bits before the size check above.
            return left**right
    raise FormulaError(f"formula {text!r} may not contain {type(node.op).__name__}")


def _call(name: str, arguments: list[Exact], text: str) -> Exact:
    if name in ("min", "max") and len(arguments) >= 2:
        return min(arguments) if name == "min" else max(arguments)
    if name == "ceil" and len(arguments) == 1:
        return math.ceil(arguments[0])
    raise FormulaError(f"formula {text!r}: {name}() of {len(arguments)} values is unknown; min, max and ceil are known")
