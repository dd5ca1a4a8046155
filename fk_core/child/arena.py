"""Memory that judge and candidate both see: the judge owns it, the candidate's inputs are views of it.

On the CPU a sealed memfd, on a GPU memory exported by descriptor (``cudadrv.SharedMemory``). Because the candidate
works on the very bytes that the judge wrote, the judge reads for itself what became of them.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from math import prod
from typing import Protocol

import torch

from fk_core.child import cudadrv

ALIGN = 256
_F_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 0x0001, 0x0002, 0x0004

_synchronize = torch.cuda.synchronize
_address = torch._C.TensorBase.data_ptr


class Arena(Protocol):
    """``size`` bytes on ``device`` that can be seen as tensors."""

    size: int
    device: torch.device

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor over the bytes at ``offset``, with a storage of its own that ends where it ends."""
        ...

    def address(self, offset: int, size: int) -> int:
        """Address of ``size`` bytes at ``offset`` in this process. Raises ``ValueError`` where they are outside."""
        ...

    def holds(self, address: int) -> bool:
        """Whether an address of this process lies in the arena."""
        ...

    def export(self) -> int:
        """A descriptor to send to the other side; the caller closes it."""
        ...

    def close(self) -> None:
        """Give up what the system holds for it. Dropping the last reference, tensors included, does the same."""
        ...


class HostArena:
    def __init__(self, fd: int, size: int) -> None:
        self.size, self.device = size, torch.device("cpu")
        self._fd = os.dup(fd)
        # Tensors keep the mapping alive, not the descriptor; a warm process would run out of them.
        self._close = weakref.finalize(self, os.close, self._fd)
        # Populated: a first touch must not cost the timed calls of one side a page fault.
        self._map = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._view = memoryview(self._map)
        self._base = _address(torch.frombuffer(self._view, dtype=torch.uint8))

    @classmethod
    def create(cls, size: int) -> HostArena:
        size = max(size, mmap.PAGESIZE)
        fd = os.memfd_create("fk-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
            return cls(fd, size)
        finally:
            os.close(fd)

    def address(self, offset: int, size: int) -> int:
        _within(offset, size, self.size)
        return self._base + offset

    def holds(self, address: int) -> bool:
        return self._base <= address < self._base + self.size

    def export(self) -> int:
        return os.dup(self._fd)

    def close(self) -> None:
        self._close()

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        if offset % dtype.itemsize:
            raise ValueError(f"offset {offset} is not a multiple of {dtype.itemsize}")
        end = _within(offset, count * dtype.itemsize, self.size)
        return torch.frombuffer(self._view[offset:end], dtype=dtype).view(shape)


class _Pointer:
    """Device memory in the form that ``torch.as_tensor`` takes without copying."""

    def __init__(self, address: int, count: int, owner: object) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}
        self.owner = owner


class DeviceArena:
    def __init__(self, memory: cudadrv.SharedMemory, index: int) -> None:
        self.size, self.device, self.memory = memory.size, torch.device("cuda", index), memory
        # Every tensor holds on to its arena, so nothing maps the memory any more when this runs.
        self._close = weakref.finalize(self, _release, memory)

    @classmethod
    def create(cls, size: int, index: int) -> DeviceArena:
        return cls(cudadrv.SharedMemory.create(size, index), index)

    @classmethod
    def open(cls, fd: int, size: int, index: int) -> DeviceArena:
        return cls(cudadrv.SharedMemory.open(fd, size, index), index)

    def address(self, offset: int, size: int) -> int:
        _within(offset, size, self.size)
        return self.memory.address + offset

    def holds(self, address: int) -> bool:
        return self.memory.address <= address < self.memory.address + self.size

    def export(self) -> int:
        return self.memory.export()

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype, device=self.device)
        if offset % dtype.itemsize:
            raise ValueError(f"offset {offset} is not a multiple of {dtype.itemsize}")
        size = count * dtype.itemsize
        _within(offset, size, self.size)
        raw = torch.as_tensor(_Pointer(self.memory.address + offset, size, self), device=self.device)
        return raw.view(dtype).view(shape)

    def close(self) -> None:
        self._close()


def _within(offset: int, size: int, room: int) -> int:
    """The end of ``size`` bytes at ``offset``, which must lie in an arena of ``room`` bytes."""
    end = offset + size
    if offset < 0 or end > room:
        raise ValueError(f"bytes {offset} to {end} of an arena of {room}")
    return end


def _release(memory: cudadrv.SharedMemory) -> None:
    _synchronize(memory.device)
    memory.close()


def open_arena(fd: int, size: int, device: torch.device) -> Arena:
    """The arena that a received descriptor stands for."""
    if device.type == "cpu":
        return HostArena(fd, size)
    return DeviceArena.open(fd, size, device.index or 0)


def create_arena(size: int, device: torch.device) -> Arena:
    return HostArena.create(size) if device.type == "cpu" else DeviceArena.create(size, device.index or 0)


def write(arena: Arena, offset: int, tensor: torch.Tensor) -> None:
    """Copy a contiguous tensor into the arena."""
    if arena.device.type == "cpu":
        size = tensor.numel() * tensor.element_size()
        ctypes.memmove(arena.address(offset, size), tensor.data_ptr(), size)
    else:
        arena.tensor(offset, tuple(tensor.shape), tensor.dtype).copy_(tensor)


def poison(arena: Arena, offset: int, size: int) -> None:
    """Fill bytes with 0xFF: NaN in every floating-point dtype."""
    if arena.device.type == "cpu":
        ctypes.memset(arena.address(offset, size), 0xFF, size)
    else:
        arena.tensor(offset, (size,), torch.uint8).fill_(0xFF)


def spaced(
    arena: Arena, offset: int, step: int, count: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """``count`` contiguous tensors that begin ``step`` bytes apart, as one of shape [count, *shape].

    On a GPU one operation on all of them costs as much as one on each.
    """
    size = prod(shape) * dtype.itemsize
    if not size or not count:
        return arena.tensor(offset, (count, *shape), dtype)
    span = ((count - 1) * step + size) // dtype.itemsize
    inner = [prod(shape[side + 1 :]) for side in range(len(shape))]
    return arena.tensor(offset, (span,), dtype).as_strided((count, *shape), (step // dtype.itemsize, *inner))


class Cursor:
    """Hands out consecutive aligned places in an arena."""

    def __init__(self, start: int = 0) -> None:
        self.offset = start

    def take(self, size: int) -> int:
        offset = self.offset
        self.offset = -(-(offset + size) // ALIGN) * ALIGN
        return offset
