"""Operators written in other ways, through the whole plan of calls: what production code does passes, what is wrong
fails even where the candidate takes no other dtype than bfloat16, so that the fp32 magnifier can't help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fk_core.catalog import Catalog
from fk_core.child import inputs
from fk_core.child.compare import Judgement, Rule, judge
from fk_core.child.oracle import Oracle

Norm = Callable[[Tensor, Tensor | None, Tensor, float], Any]
CATALOG = Catalog()
SEEDS = (1, 2)


def run(task_name: str, forward: Callable[..., Any], seed: int, dtype: str) -> list[tuple[str, Judgement]]:
    """Every judgement of the plan for the CPU cases in one dtype, beside why the call was made."""
    spec = CATALOG.get(task_name)
    task, oracle = spec.model_dump(), Oracle(spec.path, spec.sha256)
    cases = [case for case in task["cpu_cases"] if case["dtype"] == dtype]
    probes = inputs.plan(task, cases, seed, cpu=True)
    found = []
    for index, probe in enumerate(probes):
        if probe.dtype != dtype:
            continue
        call = inputs.call_of(task, probe)
        given = inputs.materialise(task, probes, index, oracle.make_inputs)
        state = inputs.state_of(task, call, probe.seed ^ 9)
        expected = oracle.reference(call, state, given)
        if probe.distribution in inputs.FLUSHABLE:
            other = oracle.reference(call, state, inputs.flushed(given))
            expected = inputs.allow_flush(expected, other, spec.tolerance.u)
        out = forward(call, state, *(given[name].clone() for name in call.arguments))
        rule = Rule(generic=probe.generic, dtype=call.dtype, limit=spec.tolerance.limit, u=spec.tolerance.u)
        for (name, (ref, mag)), got in zip(expected.items(), out if isinstance(out, tuple) else (out,), strict=True):
            found.append((probe.why, judge(name, got, ref, mag, rule)))
    return found


def norm(compute: Norm) -> Callable[..., Any]:
    def forward(call: Any, state: dict[str, Tensor], x: Tensor, residual: Tensor | None = None) -> Any:
        return compute(x, residual, state["weight"], call.init["eps"])

    return forward


def total(x: Tensor, residual: Tensor | None) -> Tensor:
    return x.float() if residual is None else x.float() + residual.float()


def given_back(y: Tensor, h: Tensor, x: Tensor, residual: Tensor | None) -> Any:
    return y.to(x.dtype) if residual is None else (y.to(x.dtype), h.to(x.dtype))


def rounded_before_the_weight(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    h = (x if residual is None else x + residual).float()
    unit = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return given_back(weight * unit, h, x, residual)


def rounded_sum(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    h = (x if residual is None else x + residual).float()
    return given_back(h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * weight.float(), h, x, residual)


def statistics_of(share: int) -> Norm:
    def compute(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
        h = total(x, residual)
        kept = h[..., : h.shape[-1] - max(1, h.shape[-1] // share)]
        return given_back(h * torch.rsqrt(kept.square().mean(-1, keepdim=True) + eps) * weight.float(), h, x, residual)

    return compute


def all_in_16_bits(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    h = x if residual is None else x + residual
    return given_back(h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * weight, h, x, residual)


def without_eps(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    return rounded_sum(x, residual, weight, 0.0)


def fixed_eps(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    return rounded_sum(x, residual, weight, 2e-6)


def clipped(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    h = total(x, residual)
    scale = torch.rsqrt(h.clamp(-100, 100).square().mean(-1, keepdim=True) + eps)
    return given_back(h * scale * weight.float(), h, x, residual)


def old_residual(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
    y = rounded_sum(x, residual, weight, eps)
    return y if residual is None else (y[0], residual)


def silu(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    return lambda call, state, x: compute(*x.chunk(2, dim=-1))


def softmax(compute: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    return lambda call, state, x: compute(x, call.init["dim"])


def without_maximum(x: Tensor, dim: int) -> Tensor:
    e = x.float().exp()
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


def with_the_log_of_the_sum(x: Tensor, dim: int) -> Tensor:
    h = x.float()
    return (h - h.logsumexp(dim, keepdim=True)).exp().to(x.dtype)


def by_powers_of_two(x: Tensor, dim: int) -> Tensor:
    h = x.float() * 1.4426950408889634
    e = torch.exp2(h - h.amax(dim, keepdim=True))
    return (e * e.sum(dim, keepdim=True).reciprocal()).to(x.dtype)


HONEST = [
    ("rms_norm", norm(rounded_before_the_weight), "bfloat16"),
    ("rms_norm", norm(rounded_sum), "bfloat16"),
    ("rms_norm", norm(rounded_sum), "float32"),
    ("silu_and_mul", silu(lambda a, b: F.silu(a) * b), "bfloat16"),
    ("silu_and_mul", silu(lambda a, b: a * torch.sigmoid(a) * b), "bfloat16"),
    ("silu_and_mul", silu(lambda a, b: (a.float() / (1 + torch.exp(-a.float())) * b.float()).to(a.dtype)), "bfloat16"),
    ("silu_and_mul", silu(lambda a, b: a * 0.5 * (1 + torch.tanh(a * 0.5)) * b), "float32"),
    ("softmax", softmax(by_powers_of_two), "bfloat16"),
    ("softmax", softmax(lambda x, dim: torch.log_softmax(x.float(), dim).exp().to(x.dtype)), "float16"),
    ("softmax", softmax(lambda x, dim: torch.log_softmax(x, dim).exp()), "float32"),
    ("softmax", softmax(with_the_log_of_the_sum), "bfloat16"),
    ("softmax", softmax(with_the_log_of_the_sum), "float16"),
]
WRONG = [
    ("rms_norm", norm(statistics_of(64)), "bfloat16"),
    ("rms_norm", norm(statistics_of(256)), "bfloat16"),
    ("rms_norm", norm(all_in_16_bits), "bfloat16"),
    ("rms_norm", norm(without_eps), "bfloat16"),
    ("rms_norm", norm(fixed_eps), "bfloat16"),
    ("rms_norm", norm(clipped), "bfloat16"),
    ("rms_norm", norm(old_residual), "bfloat16"),
    ("silu_and_mul", silu(lambda a, b: F.silu(b) * a), "bfloat16"),
    ("silu_and_mul", silu(lambda a, b: F.gelu(a) * b), "bfloat16"),
    ("silu_and_mul", silu(lambda a, b: torch.where(a < -5, 0.0, F.silu(a)) * b), "bfloat16"),
    ("softmax", softmax(without_maximum), "float16"),
    ("softmax", softmax(lambda x, dim: torch.softmax(x, 0)), "bfloat16"),
    ("softmax", softmax(lambda x, dim: torch.softmax(x.bfloat16(), dim).to(x.dtype)), "float16"),
    ("softmax", softmax(lambda x, dim: torch.softmax(x.half(), dim).to(x.dtype)), "float32"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", range(len(HONEST)))
def test_honest_ways_pass(variant: int, seed: int) -> None:
    task, forward, dtype = HONEST[variant]
    assert not [(why, one) for why, one in run(task, forward, seed, dtype) if not one.ok]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", range(len(WRONG)))
def test_wrong_ways_fail_in_their_own_dtype(variant: int, seed: int) -> None:
    task, forward, dtype = WRONG[variant]
    assert [why for why, one in run(task, forward, seed, dtype) if not one.ok]
