"""One call of an operator, as the judge, the oracle and the input draws see it.

Task specifications arrive here as plain dictionaries (``TaskSpec.model_dump()``), because children do not import the
records of the parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from fk_core.child.formulas import evaluate

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}


@dataclass(frozen=True)
class Call:
    entry: str
    form: str
    arguments: tuple[str, ...]
    """Tensor arguments that are passed, in order."""
    dims: dict[str, int]
    init: dict[str, Any]
    """Every argument of ``__init__``, defaults filled in."""
    dtype: torch.dtype
    shapes: dict[str, tuple[int, ...]]
    """Shape of each tensor argument that is passed."""
    distribution: str
    level: float | None = None
    """Where in its range a distribution of scales lies, from 0 to 1; None leaves it to chance."""
    leading: tuple[int, ...] = ()
    """Sides that stand in place of the form's leading dimension; empty where that is one dimension."""


def make_call(
    task: Mapping[str, Any],
    *,
    entry: str,
    form: str,
    dims: Mapping[str, int],
    init: Mapping[str, Any],
    dtype: str,
    distribution: str = "normal",
    level: float | None = None,
    leading: Sequence[int] = (),
) -> Call:
    """The call that a case or a probe describes; shapes follow from ``dims``, and from ``leading`` where it is given.

    Raises ``ValueError`` where ``leading`` is no way to write the form's leading dimension.
    """
    spec = task["entries"][entry]["forms"][form]
    if leading and (not spec["leading"] or prod(leading) != dims[spec["leading"]]):
        raise ValueError(f"{tuple(leading)} can't stand for {spec['leading'] or 'any dimension'} of {dict(dims)}")
    arguments = tuple(spec["arguments"])
    sides = tuple(leading)
    shapes = {name: _split(task["tensors"][name]["shape"], dims, spec["leading"], sides) for name in arguments}
    full = {**init_defaults(task["entries"][entry]["init"]), **init}
    return Call(entry, form, arguments, dict(dims), full, DTYPES[dtype], shapes, distribution, level, sides)


def stacked(task: Mapping[str, Any], call: Call, count: int) -> Call | None:
    """``count`` calls like ``call`` as one of ``count`` times as many rows, those of the first call first.

    None where the task does not say that rows are independent of each other.
    """
    spec = task["entries"][call.entry]["forms"][call.form]
    rows = spec["rows"]
    if not rows and all(call.init[name] == value for name, value in spec["leading_init"].items()):
        rows = spec["leading"]
    if not rows or call.leading:
        return None
    shapes = {name: (count * shape[0], *shape[1:]) for name, shape in call.shapes.items()}
    return replace(call, dims={**call.dims, rows: count * call.dims[rows]}, shapes=shapes)


def _split(shape: Sequence[str], dims: Mapping[str, int], name: str, leading: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with ``leading`` in place of its first side, where that is the dimension ``name``."""
    if leading and shape[0] == name:
        return (*leading, *shape_of(shape[1:], dims))
    return shape_of(shape, dims)


def shape_of(shape: Sequence[str], dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(side, dims) for side in shape)


def state_shapes(task: Mapping[str, Any], call: Call) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters and buffers that ``load_state_dict(strict=True)`` will be given."""
    state = task["entries"][call.entry]["state"]
    return {name: shape_of(tensor["shape"], call.dims) for name, tensor in state.items()}


def output_layout(task: Mapping[str, Any], call: Call) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name, shape and dtype of each return value, in the order in which ``forward`` returns them."""
    form = task["entries"][call.entry]["forms"][call.form]
    return {
        name: (
            _split(output["shape"], call.dims, form["leading"], call.leading),
            call.dtype if output["dtype"] == "same" else DTYPES[output["dtype"]],
        )
        for name, output in form["outputs"].items()
    }


def init_defaults(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {parameter["name"]: parameter["default"] for parameter in parameters if parameter["has_default"]}


def passed_init(parameters: list[dict[str, Any]], init: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of the construction: those of ``init`` that differ from the baseline's default.

    A candidate may so leave out arguments that no case sets.
    """
    defaults = init_defaults(parameters)
    return {name: value for name, value in init.items() if name not in defaults or defaults[name] != value}
