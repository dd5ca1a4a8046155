"""No task may accept an output that nobody computed, for any of its cases; and each must accept honest rounding.

Rows are independent in all tasks here, so every case is tried with few of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.catalog import Catalog
from fk_core.child import inputs
from fk_core.child.baselines.base import provider
from fk_core.child.calls import Call
from fk_core.child.compare import Judgement, Rule, judge
from fk_core.child.oracle import Oracle
from fk_core.child.probes import Budget

CATALOG = Catalog()
ROWS = Budget(rows=4, elements=1 << 17, fresh_rows=1, primes=(3,), per_case=1, further_sweep=1)


@dataclass(frozen=True)
class Made:
    """One call with its inputs and its reference."""

    task: dict[str, Any]
    call: Call
    state: dict[str, Tensor]
    inputs: dict[str, Tensor]
    reference: dict[str, tuple[Tensor, Tensor | None]]
    rule: Rule

    def right(self) -> dict[str, Tensor]:
        return {name: ref.to(self.call.dtype) for name, (ref, _) in self.reference.items()}

    def verdict(self, name: str, got: Tensor) -> Judgement:
        ref, mag = self.reference[name]
        return judge(name, got, ref, mag, self.rule)


@lru_cache(maxsize=4)
def make(task_name: str, case_id: str, device: str, distribution: str = "normal", seed: int = 5) -> Made:
    spec = CATALOG.get(task_name)
    task = spec.model_dump()
    oracle = Oracle(spec.path, spec.sha256)
    case = next(case for case in spec.case_set(device) if case.id == case_id).model_dump()
    probes = inputs.plan(task, [case], seed, cpu=True, budget=ROWS)
    first = next(index for index, probe in enumerate(probes) if probe.why.startswith("first of several related"))
    probes[first] = replace(probes[first], distribution=distribution)
    call = inputs.call_of(task, probes[first])
    given = inputs.materialise(task, probes, first, oracle.make_inputs)
    state = inputs.state_of(task, call, seed + 1)
    tolerance = spec.tolerance
    rule = Rule(dtype=call.dtype, limit=tolerance.limit, u=tolerance.u, generic=distribution in inputs.GENERIC)
    return Made(task, call, state, given, oracle.reference(call, state, given), rule)


def cases() -> list[Any]:
    found = []
    for name in CATALOG.names():
        spec = CATALOG.get(name)
        for device in ("cpu", "cuda"):
            for case in spec.case_set(device):
                found.append(pytest.param(name, case.id, device, id=f"{device}:{case.id}"))
    return found


def spoil(tensor: Tensor, share: float, by: Callable[[Tensor], Tensor]) -> Tensor:
    """Change a share of the elements, at least one."""
    flat = tensor.clone().reshape(-1)
    count = max(1, int(share * flat.numel()))
    places = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(3))[:count]
    flat[places] = by(flat[places])
    return flat.reshape(tensor.shape)


def with_last_row(tensor: Tensor, value: float | Tensor) -> Tensor:
    changed = tensor.clone()
    changed[-1] = value
    return changed


def degenerate(made: Made, right: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "zeros", torch.zeros_like(right)
    yield "the mean everywhere", torch.full_like(right, float(right.float().mean()))
    yield "a small constant", torch.full_like(right, 1e-6)
    yield "NaN everywhere", torch.full_like(right, float("nan"))
    yield "last row zero", with_last_row(right, 0.0)
    yield "last row NaN", with_last_row(right, float("nan"))
    yield "last row 3e38, as filled memory", with_last_row(right, torch.finfo(right.dtype).max)
    yield "1% of the elements zero", spoil(right, 0.01, torch.zeros_like)
    yield "1% of the elements 5% too large", spoil(right, 0.01, lambda part: part * 1.05)
    yield "1% of the elements infinite", spoil(right, 0.01, lambda part: torch.full_like(part, float("inf")))
    yield "the last column zero", torch.cat([right[..., :-1], torch.zeros_like(right[..., -1:])], dim=-1)
    if right.shape[0] > 1:
        yield "rows moved by one", right.roll(1, dims=0)
    yield "elements moved by one", right.roll(1, dims=-1)
    for name, tensor in made.inputs.items():
        width = right.shape[-1]
        if tensor.shape[:-1] == right.shape[:-1] and tensor.shape[-1] >= width:
            yield f"a copy of {name}", tensor[..., :width].clone()
            yield f"a copy of the end of {name}", tensor[..., -width:].clone()


@pytest.mark.parametrize(("task", "case", "device"), cases())
def test_degenerate_outputs_are_rejected(task: str, case: str, device: str) -> None:
    made = make(task, case, device)
    accepted = [
        (name, what)
        for name, right in made.right().items()
        for what, got in degenerate(made, right)
        if made.verdict(name, got).ok
    ]
    assert not accepted


@pytest.mark.parametrize(("task", "case", "device"), cases())
def test_honest_rounding_is_accepted(task: str, case: str, device: str) -> None:
    made = make(task, case, device)
    for name, right in made.right().items():
        assert made.verdict(name, right).ok
        off = right.clone()
        kind = {2: torch.int16, 4: torch.int32}[right.element_size()]
        random = torch.rand(right.shape, generator=torch.Generator().manual_seed(11))
        step = torch.where(random < 0.125, 1, torch.where(random > 0.875, -1, 0)).to(kind)
        off.view(kind).add_(torch.where(right == 0, 0, step).to(kind))
        found = made.verdict(name, off)
        assert found.ok, found
        assert found.ulp_histogram["1"] > 0


@pytest.mark.parametrize(("task", "case", "device"), cases())
def test_eager_torch_is_accepted(task: str, case: str, device: str) -> None:
    spec = CATALOG.get(task)
    for distribution in spec.distributions:
        if distribution in inputs.FLUSHABLE:
            continue  # judged beside flushed inputs, below
        made = make(task, case, device, distribution)
        for name, got in eager(made).items():
            found = made.verdict(name, got)
            assert found.ok, (distribution, found)


def eager(made: Made) -> dict[str, Tensor]:
    call = made.call
    forward = provider("torch_eager").build(
        made.task["name"], call.entry, call.init, made.state, call.dtype, torch.device("cpu")
    )
    with torch.no_grad():
        out = forward(*(made.inputs[name].clone() for name in call.arguments))
    outputs = out if isinstance(out, tuple) else (out,)
    return dict(zip(made.task["entries"][call.entry]["forms"][call.form]["outputs"], outputs, strict=True))


@pytest.mark.parametrize("distribution", sorted(inputs.FLUSHABLE))
@pytest.mark.parametrize("task", CATALOG.names())
def test_denormals_may_be_flushed_and_nothing_else(task: str, distribution: str) -> None:
    spec = CATALOG.get(task)
    for case in spec.cpu_cases:
        made = make(task, case.id, "cpu", distribution)
        oracle = Oracle(spec.path, spec.sha256)
        flushed = oracle.reference(made.call, made.state, inputs.flushed(made.inputs))
        wide = replace(made, reference=inputs.allow_flush(made.reference, flushed, spec.tolerance.u))
        for name, got in eager(made).items():
            assert wide.verdict(name, got).ok
            assert wide.verdict(name, flushed[name][0].to(got.dtype)).ok
            assert not wide.verdict(name, got + 1).ok
