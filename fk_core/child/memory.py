"""Which memory a tensor takes, and its bytes copied elsewhere."""

from __future__ import annotations

import ctypes
from bisect import bisect_left, insort
from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor

from fk_core.child import cudadrv

MOST = 16

# Bound before any candidate is loaded.
_address = torch._C.TensorBase.data_ptr
_size, _stride = torch._C.TensorBase.size, torch._C.TensorBase.stride
_dtype, _device = torch._C.TensorBase.dtype.__get__, torch._C.TensorBase.device.__get__
_contiguous, _is_contiguous = torch._C.TensorBase.contiguous, torch._C.TensorBase.is_contiguous
_memmove, _current_stream = ctypes.memmove, torch.cuda.current_stream


def last_stride(tensor: Tensor) -> int:
    """From one element of a row to the next; 1 where a row has no next."""
    sizes, strides = _size(tensor), _stride(tensor)
    return int(strides[-1]) if prod(sizes) and sizes[-1:] > (1,) else 1


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


def shared(extents: Iterable[tuple[int, int, int]]) -> list[list[int]]:
    """Pairs of owners of which an extent ``(first byte, end, owner)`` reaches into one of the other's; the first 16.

    Sorts once. Of an owner that overlaps with several others at least one pair is found.
    """
    found: list[list[int]] = []
    end, holder = 0, -1
    for start, stop, owner in sorted(extent for extent in extents if extent[0] < extent[1]):
        if start < end and owner != holder and len(found) < MOST:
            found.append(sorted((owner, holder)))
        if stop > end:
            end, holder = stop, owner
    return found


class Extents:
    """Extents that are held. Says whether another one reaches into one of them, without looking at most."""

    __slots__ = ("_longest", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int]] = []
        self._longest = 0

    def add(self, place: tuple[int, int]) -> None:
        first, last = place
        if first < last:
            insort(self._sorted, place)
            self._longest = max(self._longest, last - first)

    def remove(self, place: tuple[int, int]) -> None:
        """Take out one that was added; an empty one never was in."""
        if place[0] < place[1]:
            del self._sorted[bisect_left(self._sorted, place)]

    def touched_by(self, place: tuple[int, int]) -> bool:
        first, last = place
        before = bisect_left(self._sorted, (last, 0)) if first < last else 0
        while before:
            before -= 1
            start, end = self._sorted[before]
            if first < end:
                return True
            if start + self._longest <= first:
                break
        return False


def copy_bytes(tensor: Tensor, target: int, size: int) -> bool:
    """Copy a tensor's elements, in order, to an address on its device; nothing, and False, where they are not ``size``
    bytes.
    """
    source = tensor if _is_contiguous(tensor) else _contiguous(tensor)
    if prod(_size(source)) * _dtype(source).itemsize != size:
        return False
    if not size:
        return True
    device = _device(source)
    if device.type == "cpu":
        _memmove(target, _address(source), size)
    else:
        cudadrv.copy(target, _address(source), size, _current_stream(device).cuda_stream)
    return True
