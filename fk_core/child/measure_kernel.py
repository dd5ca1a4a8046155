"""``elementwise.measure`` as one pass over the output on a GPU: the same statistics, in one kernel instead of sixty.

On an H200 the many small kernels took 2.3 ms for a small output and 29 ms for 16384 x 4096, and the correctness of one
candidate is a hundred such comparisons. Arithmetic is fp64, as there.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from fk_core.child.elementwise import COLUMNS, FP32_UNIT, LEAST, MAXIMA, ROW_LENGTH, ROW_SIGMAS, Yardstick

BLOCK = 512
_WIDTH = len(COLUMNS)


@triton.jit(do_not_specialize=["width", "absolute", "biased"])
def _measure_rows(
    got_ptr,
    ref_ptr,
    mag_ptr,
    table_ptr,
    width,
    limit,
    u,
    fp32_unit,
    least,
    half_eps,
    smallest,
    top_binade,
    largest,
    shared_part,
    sigmas,
    absolute,
    biased,
    HAS_MAG: tl.constexpr,
    COARSE: tl.constexpr,
    COLUMNS_: tl.constexpr,
    BLOCK_: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    inf = float("inf")
    none = tl.zeros([BLOCK_], dtype=tl.float64)
    max_abs, max_ratio, sum2 = none, none, none
    finite, wrong, lost, nans, infs = none, none, none, none, none
    ulp0, ulp1, ulp2 = none, none, none
    bias, variance, shared = none, none, none
    for start in range(0, width, BLOCK_):
        cols = start + tl.arange(0, BLOCK_)
        inside = cols < width
        c = tl.load(got_ptr + row * width + cols, mask=inside, other=0.0).to(tl.float32).to(tl.float64)
        r = tl.load(ref_ptr + row * width + cols, mask=inside, other=0.0)
        plain = tl.abs(r)
        size = tl.where(absolute != 0, tl.maximum(plain, 1.0), plain)
        binade = (size.to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)
        half = tl.minimum(tl.maximum(binade, smallest), top_binade) * half_eps
        if HAS_MAG:
            m = tl.load(mag_ptr + row * width + cols, mask=inside, other=0.0)
            room = half + u * m
        else:
            m = none
            room = tl.where(absolute != 0, half + u * size, half)
        room = tl.maximum(tl.where(room < inf, room, half), least)
        error = c - r
        far = tl.abs(error)
        calm = far < inf
        overflow = (tl.abs(c) == inf) & ((c > 0) == (r > 0)) & (plain + limit * room >= largest)
        both_nan = (c != c) & (r != r)
        agree = (c == r) | both_nan | overflow
        ratio = tl.where(calm, far / room, tl.where(agree, 0.0, inf))
        kept = tl.where(calm, ratio, 0.0)
        max_abs = tl.maximum(max_abs, tl.where(calm, far, 0.0))
        max_ratio = tl.maximum(max_ratio, kept)
        sum2 += kept * kept
        finite += tl.where(calm & inside, 1.0, 0.0)
        wrong += tl.where(ratio > limit, 1.0, 0.0)
        lost += tl.where(ratio == inf, 1.0, 0.0)
        nans += tl.where(both_nan, 1.0, 0.0)
        infs += tl.where((tl.abs(c) == inf) & (c == r), 1.0, 0.0)
        steps = tl.where(calm, far / (2 * half), tl.where(agree, 0.0, inf))
        ulp0 += tl.where((steps <= 0.5) & inside, 1.0, 0.0)
        ulp1 += tl.where((steps > 0.5) & (steps <= 1.5), 1.0, 0.0)
        ulp2 += tl.where((steps > 1.5) & (steps <= 2.5), 1.0, 0.0)
        weight = tl.where(plain <= largest, r, 0.0)
        heavy = tl.abs(weight)
        part = half * half * (2.0 / 3.0)
        common = heavy * shared_part
        if HAS_MAG:
            usable = tl.where(tl.abs(m) < inf, tl.maximum(m, 0.0), 0.0)
            common += fp32_unit * usable
            if COARSE:
                part += (u * usable) * (u * usable)
        bias += tl.where(calm, error, 0.0) * weight
        variance += part * weight * weight
        shared += common * heavy
    bound = sigmas * tl.sqrt(tl.sum(variance, axis=0)) + tl.sum(shared, axis=0)
    worst = tl.where((biased != 0) & (bound > 0), tl.abs(tl.sum(bias, axis=0)) / bound, 0.0)
    out = table_ptr + row * COLUMNS_
    tl.store(out, tl.max(max_abs, axis=0))
    tl.store(out + 1, tl.max(max_ratio, axis=0))
    tl.store(out + 2, tl.sum(sum2, axis=0))
    tl.store(out + 3, tl.sum(finite, axis=0))
    tl.store(out + 4, tl.sum(wrong, axis=0))
    tl.store(out + 5, tl.sum(lost, axis=0))
    tl.store(out + 6, worst)
    tl.store(out + 7, tl.sum(nans, axis=0))
    tl.store(out + 8, tl.sum(infs, axis=0))
    tl.store(out + 9, tl.sum(ulp0, axis=0))
    tl.store(out + 10, tl.sum(ulp1, axis=0))
    tl.store(out + 11, tl.sum(ulp2, axis=0))


def measure_fused(got: Tensor, ref: Tensor, mag: Tensor | None, yard: Yardstick) -> Tensor:
    """One row of ``COLUMNS``, as ``elementwise.measure`` gives per chunk."""
    width = ref.shape[-1] if ref.dim() else 1
    rows = ref.numel() // width
    got, ref = got.contiguous(), ref.contiguous()
    other = ref if mag is None else mag.broadcast_to(ref.shape).contiguous()
    table = torch.empty(rows, _WIDTH, dtype=torch.float64, device=got.device)
    info = torch.finfo(yard.dtype)
    # Scalars travel as fp32. All but shared_part are powers of two or numbers of the output dtype, and so exact.
    _measure_rows[(rows,)](
        got,
        ref,
        other,
        table,
        width,
        yard.limit,
        yard.u,
        FP32_UNIT,
        LEAST,
        info.eps / 2,
        info.smallest_normal,
        2.0 ** math.floor(math.log2(info.max)),
        info.max,
        info.eps / 4 + 6 * (1 + math.log2(width)) * FP32_UNIT,
        ROW_SIGMAS,
        int(yard.absolute),
        int(yard.generic and width >= ROW_LENGTH),
        HAS_MAG=mag is not None,
        COARSE=yard.u > FP32_UNIT,
        COLUMNS_=_WIDTH,
        BLOCK_=BLOCK,
        num_warps=4,
    )
    return torch.where(_maxima(got.device), table.amax(dim=0), table.sum(dim=0)).unsqueeze(0)


@lru_cache
def _maxima(device: torch.device) -> Tensor:
    return torch.tensor([name in MAXIMA for name in COLUMNS], device=device)
