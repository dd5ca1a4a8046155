"""How far a floating-point output is from the oracle, measured in few kernels and little memory.

Every element gets an error ratio ``t = abs(got - ref) / (half an ulp of the output dtype at ref + u * mag)``, where
``ref`` is the fp64 oracle and ``mag`` is the size that rounding errors of the operator scale with. The denominator
never falls below 2^-126, so that flushing denormals to zero is allowed. ``mag = -inf`` marks an element that has to be
exact.

Beside it, per row (last dimension), the *row bias*: ``abs(sum(e * ref))`` against what independent roundings and fp32
accumulation can give. It sees an error that all elements of a row share and that hides below half an ulp of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 2.0**-126
"""Smallest denominator of an error ratio: the smallest normal number of fp32 and bf16."""
FP32_UNIT = 2.0**-24
ROW_SIGMAS = 7.0
ROW_LENGTH = 64
"""Rows shorter than this have no meaningful bias."""
COLUMNS = (
    "max_abs",
    "max_ratio",
    "sum_ratio2",
    "finite",
    "wrong",
    "wrong_nonfinite",
    "worst_row",
    "nan_matched",
    "inf_matched",
    "ulp0",
    "ulp1",
    "ulp2",
)
MAXIMA = frozenset({"max_abs", "max_ratio", "worst_row"})
"""Columns of which the largest counts; the others add up."""
_EXPONENT_BITS = 0x7FF0000000000000
_CHUNK = {"cpu": 1 << 19, "cuda": 1 << 24}


@dataclass(frozen=True)
class Yardstick:
    """What errors of one output are measured with."""

    dtype: torch.dtype
    limit: float
    u: float
    generic: bool
    absolute: bool = False
    """Errors count as if no value were smaller than 1, as for a log-sum-exp."""


def half_ulp(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the spacing of ``dtype`` at ``size`` (fp64): exact, from the exponent bits."""
    info = torch.finfo(dtype)
    binade = (size.view(torch.int64) & _EXPONENT_BITS).view(torch.float64)
    top = 2.0 ** math.floor(math.log2(info.max))
    return binade.clamp_(info.smallest_normal, top).mul_(info.eps / 2)


def allowance(ref: Tensor, mag: Tensor | None, yard: Yardstick) -> Tensor:
    """The denominator of the error ratio of each element."""
    size = _size(ref, yard)
    denominator = half_ulp(size, yard.dtype)
    if mag is not None:
        denominator += yard.u * mag
    elif yard.absolute:
        denominator += yard.u * size
    # A NaN or infinite mag would make every error vanish: such elements get the bare half ulp.
    denominator = torch.where(denominator < math.inf, denominator, half_ulp(size, yard.dtype))
    return denominator.clamp_(min=LEAST)


def _size(ref: Tensor, yard: Yardstick) -> Tensor:
    return ref.abs().clamp(min=1.0) if yard.absolute else ref.abs()


def ratios(got: Tensor, ref: Tensor, mag: Tensor | None, yard: Yardstick) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(error, allowance, ratio, whether both are finite), all fp64 and of the shape of ``ref``.

    Where ``got`` or ``ref`` is not finite the ratio is 0 if they agree in kind and sign, else infinite. An infinity is
    also right where ``ref`` is finite but rounds to it in the output dtype, within the error that is allowed.
    """
    denominator = allowance(ref, mag, yard)
    error = got - ref
    finite = error.isfinite()
    top = torch.finfo(yard.dtype).max
    overflows = got.isinf() & (got.sign() == ref.sign()) & (ref.abs() + yard.limit * denominator >= top)
    agree = (got == ref) | (got.isnan() & ref.isnan()) | overflows
    ratio = torch.where(finite, error.abs() / denominator, torch.where(agree, 0.0, math.inf))
    return error, denominator, ratio, finite


def chunks(got: Tensor, ref: Tensor, mag: Tensor | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Blocks of whole rows (fp64, two-dimensional), small enough that temporaries stay small."""
    width = max(1, ref.shape[-1] if ref.dim() else 1)
    shape = (-1, width)
    got2, ref2 = got.reshape(shape), ref.reshape(shape)
    mag2 = None if mag is None else mag.broadcast_to(ref.shape).reshape(shape)
    rows = max(1, _CHUNK.get(got.device.type, 1 << 19) // width)
    for start in range(0, ref2.shape[0], rows):
        part = slice(start, start + rows)
        yield got2[part].double(), ref2[part].double(), None if mag2 is None else mag2[part].double()


def measure(got: Tensor, ref: Tensor, mag: Tensor | None, yard: Yardstick) -> Tensor:
    """One row of ``COLUMNS`` per chunk, fp64, on the device of ``got``: nothing is transferred or waited for."""
    found = [_measure_chunk(c, r, m, yard) for c, r, m in chunks(got, ref, mag)]
    return torch.stack(found) if found else torch.zeros(0, len(COLUMNS), dtype=torch.float64, device=got.device)


def _measure_chunk(got: Tensor, ref: Tensor, mag: Tensor | None, yard: Yardstick) -> Tensor:
    error, _, ratio, finite = ratios(got, ref, mag, yard)
    # Correct rounding is at most half an ulp off, its neighbour at most one and a half.
    steps = torch.where(finite, error.abs() / (2 * half_ulp(_size(ref, yard), yard.dtype)), ratio)
    zero = torch.zeros((), dtype=torch.float64, device=got.device)
    calm = torch.where(finite, ratio, zero)
    worst = _row_bias(torch.where(finite, error, zero), ref, mag, yard) if yard.generic else zero
    return torch.stack(
        [
            torch.where(finite, error, zero).abs().max(),
            calm.max(),
            calm.square().sum(),
            finite.sum().double(),
            (ratio > yard.limit).sum().double(),
            (ratio == math.inf).sum().double(),
            worst,
            (got.isnan() & ref.isnan()).sum().double(),
            (got.isinf() & (got == ref)).sum().double(),
            (steps <= 0.5).sum().double(),
            ((steps > 0.5) & (steps <= 1.5)).sum().double(),
            ((steps > 1.5) & (steps <= 2.5)).sum().double(),
        ]
    )


def _row_bias(error: Tensor, ref: Tensor, mag: Tensor | None, yard: Yardstick) -> Tensor:
    """Largest row bias over its bound; above 1 the row is scaled.

    Two roundings of variance ulp^2/12 each, at 7 sigma. A quarter of eps for an intermediate result in the output
    dtype: scaled by a factor within half an ulp of 1, all elements of a row round back to what they were, and the
    factor is lost. And what fp32 accumulation may do to a whole row at once: 2^-24 * mag from the operator and
    6 * (1 + log2 N) * 2^-24 from a tree of sums. Sixteen-bit internals, where they are declared, enter the variance.
    """
    width = ref.shape[-1]
    if width < ROW_LENGTH:
        return torch.zeros((), dtype=torch.float64, device=ref.device)
    top = torch.finfo(yard.dtype).max
    weight = torch.where(ref.abs() <= top, ref, 0.0)  # NaN and infinities compare false
    variance = half_ulp(_size(ref, yard), yard.dtype).square_().mul_(2 / 3)
    shared = weight.abs() * (torch.finfo(yard.dtype).eps / 4 + 6 * (1 + math.log2(width)) * FP32_UNIT)
    if mag is not None:
        size = torch.where(mag.isfinite(), mag, 0.0).clamp_(min=0.0)
        shared += FP32_UNIT * size
        if yard.u > FP32_UNIT:
            variance += (yard.u * size).square()
    bound = ROW_SIGMAS * (variance * weight.square()).sum(-1).sqrt() + (shared * weight.abs()).sum(-1)
    bias = (error * weight).sum(-1).abs()
    return torch.where(bound > 0, bias / bound, 0.0).max()


def wrong_mask(got: Tensor, ref: Tensor, mag: Tensor | None, yard: Yardstick) -> Tensor:
    """Which elements break the limit, as booleans of the shape of ``ref``: the slow path, for explaining."""
    parts = [ratios(c, r, m, yard)[2] > yard.limit for c, r, m in chunks(got, ref, mag)]
    return torch.cat(parts).reshape(ref.shape) if parts else torch.zeros(ref.shape, dtype=torch.bool, device=got.device)
