"""Judging quantised outputs: codes and their scales, exactly or by what they stand for."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fk_core.child.compare import Judgement, Rule, judge
from fk_core.child.elementwise import half_ulp
from fk_core.child.explain import explain

STRAY_CODES = 1e-3
"""Share of codes that may be one step off under an exact scale: the value lay at the edge between two codes."""
FREE_LIMIT = 1.05
"""Largest error of a dequantised value in half steps of the code, where the scale is free."""
WASTE = 2.0
"""How much larger than the oracle's a free scale may be: beyond that, range is wasted and small values are lost."""


def judge_quantised(
    name: str,
    codes: Tensor,
    scale: Tensor,
    ref: Tensor,
    ref_scale: Tensor,
    rule: Rule,
    *,
    stray: float = STRAY_CODES,
) -> Judgement:
    """Judge ``codes`` (a float8 dtype, or small integers) and ``scale`` for fp64 values ``ref`` that were quantised.

    ``scale`` has one value for the tensor, a row, or an equal block of a row; a code stands for ``code * scale``.
    ``rule.scale``: ``exact`` the scale of the oracle within an ulp; ``ue8m0`` the same, and a power of two; ``free``
    any scale under which every value comes out within half a step of the code.
    """
    if codes.shape != ref.shape:
        return Judgement(
            name, False, "WRONG_SHAPE", note=f"{name} has shape {list(codes.shape)}, not {list(ref.shape)}"
        )
    if rule.dtype is not None and codes.dtype != rule.dtype:
        return Judgement(name, False, "WRONG_DTYPE", note=f"{name} is {codes.dtype}; expected {rule.dtype}")
    if scale.shape != ref_scale.shape:
        note = f"the scale of {name} has shape {list(scale.shape)}, not {list(ref_scale.shape)}"
        return Judgement(name, False, "WRONG_SHAPE", note=note)
    got_scale, want_scale = scale.double(), ref_scale.double()
    if not bool((got_scale.isfinite() & (got_scale >= 0)).all()):
        return Judgement(name, False, "NON_FINITE", note=f"the scale of {name} is negative or not finite")
    if rule.scale == "ue8m0" and bool((got_scale.log2() % 1 != 0).any()):
        return Judgement(name, False, "WRONG_VALUES", note=f"the scale of {name} is no power of two")
    if rule.scale == "free":
        if bool((got_scale > WASTE * 1.001 * want_scale).any()):  # scales are rounded themselves
            return Judgement(name, False, "WRONG_VALUES", note=f"the scale of {name} wastes range: over {WASTE} times")
        return _by_value(name, codes.double() * _spread(got_scale, ref), ref, _spread(want_scale, ref), codes.dtype)
    verdict = judge(f"{name}.scale", scale, want_scale, torch.zeros_like(want_scale), Rule(limit=2.0, generic=False))
    if not verdict.ok:
        return replace(verdict, note=f"the scale of {name} is not the one that the contract fixes")
    return _by_code(name, codes, ref / _spread(want_scale, ref), stray)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """fp4 codes, two to a byte with the first in the low half, as fp32 values."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=packed.device)
    pairs = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)
    return torch.where(pairs >= 8, -1.0, 1.0) * values[(pairs & 7).long()]


def _spread(scale: Tensor, like: Tensor) -> Tensor:
    """``scale`` at every element of ``like``."""
    if scale.dim() == like.dim() and scale.shape[-1] not in (1, like.shape[-1]):
        blocks, rest = divmod(like.shape[-1], scale.shape[-1])
        if rest:
            raise ValueError(f"{scale.shape[-1]} scales for rows of {like.shape[-1]}")
        scale = scale.repeat_interleave(blocks, dim=-1)
    return scale.broadcast_to(like.shape)


def _top(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max if dtype.is_floating_point else float(torch.iinfo(dtype).max)


def _half_step(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the spacing of codes at ``size``, in units of the code; denormal codes included."""
    if not dtype.is_floating_point:
        return torch.full_like(size, 0.5)
    return half_ulp(size, dtype)


def _by_value(name: str, got: Tensor, ref: Tensor, scale: Tensor, dtype: torch.dtype) -> Judgement:
    # Another scale moves values within their binade, where a step is at most twice as large relative to the value.
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        step = torch.maximum(ref.abs() * (info.eps / 2), scale * WASTE * info.smallest_normal * info.eps / 2)
    else:
        step = scale * WASTE * 0.5
    error = (got - ref).abs()
    ratio = torch.where(error == 0, 0.0, error / step)
    wrong = ~(ratio <= FREE_LIMIT)
    worst = float(ratio.nan_to_num(math.inf).max())
    if not bool(wrong.any()):
        return Judgement(name, True, max_abs_error=float(error.max()), max_error_ratio=worst)
    return _wrong(name, wrong, got, ref, "judged by the dequantised values")


def _by_code(name: str, codes: Tensor, wanted: Tensor, stray: float) -> Judgement:
    top = _top(codes.dtype)
    exact = wanted.clamp(-top, top)
    rounded = exact.to(codes.dtype).double() if codes.dtype.is_floating_point else exact.round()
    got = codes.double()
    steps = (got - rounded).abs() / (2 * _half_step(torch.minimum(got.abs(), rounded.abs()), codes.dtype))
    far, near = ~(steps <= 1.0), steps > 0  # a NaN code compares false and is far
    if bool(far.any()):
        return _wrong(name, far, got, rounded, "codes more than one step off")
    share = float(near.double().mean())
    if share > stray:
        note = f"{share:.2%} of the codes are one step off; at most {stray:.2%}"
        return _wrong(name, near, got, rounded, note)
    return Judgement(name, True, max_abs_error=float((got - rounded).abs().max()), share_wrong=share)


def _wrong(name: str, wrong: Tensor, got: Tensor, ref: Tensor, note: str) -> Judgement:
    found = explain(wrong, got, ref)
    outcome = "NON_FINITE" if found.nonfinite else "WRONG_VALUES"
    return Judgement(
        name,
        False,
        outcome,
        first_mismatch=found.first,
        share_wrong=found.share,
        pattern=found.pattern,
        note=note,
    )
