"""Which memory a tensor takes."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

# Bound before any candidate is loaded.
_address = torch._C.TensorBase.data_ptr
_size, _stride = torch._C.TensorBase.size, torch._C.TensorBase.stride
_dtype = torch._C.TensorBase.dtype.__get__


def extent(tensor: Tensor) -> tuple[int, int]:
    """First address and the one behind the last; (0, 0) of a tensor without elements."""
    sizes, strides = _size(tensor), _stride(tensor)
    if not prod(sizes):
        return 0, 0
    start = _address(tensor)
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return start, start + span * _dtype(tensor).itemsize


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the extents of two tensors have an address in common."""
    first, last = extent(one)
    start, end = extent(other)
    return first < end and start < last
