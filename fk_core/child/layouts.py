"""How the arguments of a call lie in memory: a row behind the other, or as a part of a longer tensor.

Engines hand over slices of what a fused projection wrote: queries are its first part, keys and values lie behind. Of
such a tensor the argument begins anywhere along a longer side, its last stride is 1, and its other strides are longer
than its shape has them.
"""

from __future__ import annotations

import math
import random
from math import prod
from typing import Literal

from torch import Tensor, iinfo

Layout = Literal["", "near", "far", "distant", "heads"]
"""Empty: contiguous. ``near``, ``far`` and ``distant``: rows evenly spaced, up to one and a half widths, up to four,
or more than that apart, as padded rows, queries beside keys and values and one head of many are. ``heads``: [a, b, n]
as the slice ``[:, :b]`` of [a, c, n], where rows are not evenly spaced, so that no ``view`` makes two dimensions."""
Shape = tuple[int, ...]
LANES = 16
"""Gaps are multiples of so many elements, or of the largest power of two that divides the width: rows stay as aligned
as those of a contiguous tensor, which kernels are promised up to 16 bytes."""
NEAREST, FARTHEST = 4, 40
"""Widths from row to row of ``distant``, and heads of ``heads`` for one of the argument, at the most; as far as the
tensor then has no more than ``MOST_ELEMENTS``."""
MOST_ELEMENTS = 1 << 21


def buffer_shape(shape: Shape, layout: Layout, source: random.Random) -> Shape:
    """The shape of the tensor of which an argument of ``shape`` is a part; ``heads`` needs three dimensions."""
    if not layout:
        return shape
    *outer, width = shape
    lanes = math.gcd(width, LANES)
    farthest = max(NEAREST + 1.0, min(FARTHEST, MOST_ELEMENTS / prod(shape)))
    if layout == "near":
        gap = _between(lanes, max(4 * LANES, width / 2), source)
        return (*outer, width + lanes * -(-round(gap) // lanes))
    if layout in ("far", "distant"):
        least, most = (1.5, 4.0) if layout == "far" else (NEAREST, farthest)
        more = _between(least, most, source) - 1
        return (*outer, width + lanes * -(-round(more * width) // lanes))
    *outer, heads = outer
    if not outer:
        raise ValueError(f"{shape} has no heads")
    return (*outer, max(heads + 1, round(heads * _between(1.0, farthest, source))), width)


def _between(least: float, most: float, source: random.Random) -> float:
    """Any number of the range, every doubling as likely as any other."""
    return float(least * (most / least) ** source.random())


def part(buffer: Tensor, shape: Shape) -> Tensor:
    """The argument of ``shape`` within ``buffer``, in the same memory.

    Where it begins follows from the sides, so that nobody need be told: at any quarter of what a longer
    side has left. It is as aligned there as the buffer, up to ``LANES`` elements.
    """
    if tuple(buffer.shape) == shape:
        return buffer
    quarters = sum(buffer.shape) % 5
    starts = [(there - side) * quarters // 4 for there, side in zip(buffer.shape, shape, strict=True)]
    starts[-1] -= starts[-1] % LANES
    return buffer[tuple(slice(start, start + side) for start, side in zip(starts, shape, strict=True))]


def spread(tensor: Tensor, shape: Shape) -> Tensor:
    """A buffer of ``shape`` of which the values of ``tensor`` are a part, with NaN wherever that is not."""
    if tuple(tensor.shape) == shape:
        return tensor
    empty = float("nan") if tensor.is_floating_point() else iinfo(tensor.dtype).max
    buffer = tensor.new_full(shape, empty)
    part(buffer, tuple(tensor.shape)).copy_(tensor)
    return buffer


def with_part(buffer: Tensor, other: Tensor, shape: Shape) -> Tensor:
    """``buffer`` with the argument of ``shape`` as it is in ``other``: what is left to differ lies around it."""
    merged = buffer.clone()
    part(merged, shape).copy_(part(other, shape))
    return merged
