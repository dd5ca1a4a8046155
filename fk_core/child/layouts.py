"""How the arguments of a call lie in memory: a row behind the other, or as a part of a longer tensor.

Engines hand over slices of what a fused projection wrote. Of such a tensor the argument is the first part along each
side, so that its last stride is 1 and its other strides are longer than its shape has them.
"""

from __future__ import annotations

import random
from typing import Literal

from torch import Tensor, iinfo

Layout = Literal["", "near", "far", "heads"]
"""Empty: contiguous. ``near`` and ``far``: rows evenly spaced, a little or one and a half to four widths apart, as
padded rows and queries beside keys and values are. ``heads``: [a, b, n] as the slice ``[:, :b]`` of [a, c, n], where
rows are not evenly spaced, so that no ``view`` makes two dimensions of it."""
Shape = tuple[int, ...]
LANES = 16
"""Gaps are multiples of so many elements: rows stay as aligned as they are when a projection's output is split."""


def buffer_shape(shape: Shape, layout: Layout, source: random.Random) -> Shape:
    """The shape of the tensor of which an argument of ``shape`` is a part; ``heads`` needs three dimensions."""
    if not layout:
        return shape
    *outer, width = shape
    if layout == "near":
        return (*outer, width + LANES * source.randint(1, 4))
    if layout == "far":
        return (*outer, width + LANES * -(-round(source.uniform(0.5, 3.0) * width) // LANES))
    *outer, heads = outer
    if not outer:
        raise ValueError(f"{shape} has no heads")
    return (*outer, heads + source.randint(1, 2 * heads), width)


def part(buffer: Tensor, shape: Shape) -> Tensor:
    """The argument of ``shape`` within ``buffer``, in the same memory."""
    return buffer[tuple(slice(side) for side in shape)]


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
