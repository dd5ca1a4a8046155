"""The values of every correctness call: ``plan`` says which calls, ``materialise`` makes the inputs of one of them.

Both follow from one secret 64-bit seed, so that any call can be made again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fk_core.child import layouts
from fk_core.child.calls import Call, make_call, state_shapes
from fk_core.child.distributions import (
    DISTRIBUTIONS,
    FLUSHABLE,
    GENERIC,
    MANDATORY,
    SCALES,
    Drawer,
    Shape,
    draw,
    draw_state,
    generator,
)
from fk_core.child.elementwise import LEAST
from fk_core.child.planned import Probe, Relation
from fk_core.child.probes import SPARSE, Budget, plan

__all__ = [
    "DISTRIBUTIONS",
    "FLUSHABLE",
    "GENERIC",
    "MANDATORY",
    "SCALES",
    "Budget",
    "Drawer",
    "Probe",
    "allow_flush",
    "buffer_shapes",
    "call_of",
    "derive",
    "draw",
    "draw_state",
    "flushed",
    "generator",
    "materialise",
    "plan",
    "state_of",
]

MakeInputs = Callable[[Call, Callable[[str], Tensor]], dict[str, Tensor]]


def call_of(task: Mapping[str, Any], probe: Probe) -> Call:
    return make_call(
        task,
        entry=probe.entry,
        form=probe.form,
        dims=probe.dims,
        init=probe.init,
        dtype=probe.dtype,
        distribution=probe.distribution,
        level=probe.level,
        leading=probe.leading,
    )


def state_of(task: Mapping[str, Any], call: Call, seed: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Parameters and buffers for ``load_state_dict(strict=True)``, drawn as the task says."""
    source = generator(seed, device)
    state = task["entries"][call.entry]["state"]
    shapes = state_shapes(task, call)
    return {name: draw_state(tensor["draw"], shapes[name], call.dtype, source) for name, tensor in state.items()}


def materialise(
    task: Mapping[str, Any],
    probes: Sequence[Probe],
    index: int,
    make_inputs: MakeInputs,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """The inputs of one call of the plan, contiguous; :func:`buffer_shapes` says how they are laid out afterwards."""
    probe = probes[index]
    source = generator(probe.seed, device)
    call = call_of(task, probe)
    if probe.base is None:
        return make_inputs(call, _drawer(call, source))
    base = materialise(task, probes, probe.base, make_inputs, device)
    if probe.relation == "row":
        return {name: tensor[tuple(slice(0, 1) for _ in call.shapes[name][:-1])].contiguous()
                for name, tensor in base.items()}  # fmt: skip
    fresh = make_inputs(call, _drawer(call, source))
    return derive(probe.relation, base, fresh, source)


def _drawer(call: Call, source: torch.Generator) -> Drawer:
    return Drawer(call.distribution, call.shapes, call.dtype, source, call.level)


def derive(
    relation: Relation, base: Mapping[str, Tensor], fresh: Mapping[str, Tensor], source: torch.Generator
) -> dict[str, Tensor]:
    """Inputs that stand in ``relation`` to ``base``; ``fresh`` has new values of the same shapes."""
    if relation == "new_values":
        return dict(fresh)
    if relation == "same_values":
        return {name: tensor.clone() for name, tensor in base.items()}
    if relation == "other_argument":
        first = next(iter(base))
        return {name: base[name].clone() if name == first else fresh[name] for name in base}
    if relation == "rolled":
        return {name: tensor.roll(1, dims=-1) for name, tensor in base.items()}
    if relation == "sparse":
        made = {name: tensor.clone() for name, tensor in base.items()}
        for name, tensor in made.items():
            places = torch.randperm(tensor.numel(), generator=source, device=source.device)[:SPARSE]
            # The opposite of the value is another value of the same size, so that the change shows in every dtype.
            flat = tensor.reshape(-1)
            flat[places] = -flat[places] if tensor.is_floating_point() else fresh[name].reshape(-1)[places]
        return made
    raise ValueError(f"no relation {relation!r}")


def buffer_shapes(call: Call, probe: Probe) -> dict[str, Shape]:
    """Of the tensors of which the arguments of a call are parts: their own shapes where they are contiguous.

    Of several arguments all are parts, or the first alone, or all but the first: a residual is no slice.
    """
    source = random.Random(probe.seed ^ 1)
    names = list(call.shapes)
    some = source.choice([names, names[:1], names[1:]]) if len(names) > 1 else names
    return {
        name: layouts.buffer_shape(shape, probe.layout if name in some else "", source)
        for name, shape in call.shapes.items()
    }


def flushed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors as hardware sees them that flushes denormals to zero."""
    return {
        name: torch.where(tensor.abs() < LEAST, torch.zeros_like(tensor), tensor)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in tensors.items()
    }


def allow_flush(
    reference: Mapping[str, tuple[Tensor, Tensor | None]],
    of_flushed: Mapping[str, tuple[Tensor, Tensor | None]],
    u: float,
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Widen ``mag`` so that the oracle of flushed inputs passes too: for the values of ``FLUSHABLE``."""
    widened: dict[str, tuple[Tensor, Tensor | None]] = {}
    for name, (ref, mag) in reference.items():
        other = of_flushed[name][0]
        if mag is None or not ref.is_floating_point():
            widened[name] = (ref, mag)
        else:
            widened[name] = (ref, mag + (ref - other).abs().nan_to_num(0.0, 0.0, 0.0) / u)
    return widened
