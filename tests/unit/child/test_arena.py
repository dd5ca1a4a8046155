"""Shared memory: where tensors may lie, who may change its size, what stays open."""

from __future__ import annotations

import fcntl
import gc
import itertools
import mmap
import os

import pytest
import torch

from fk_core.child.arena import ALIGN, Cursor, HostArena, create_arena, open_arena, spaced
from tests.descriptors import descriptors

CPU = torch.device("cpu")


@pytest.fixture
def arena() -> HostArena:
    return HostArena.create(3 * 4096)


def test_both_sides_see_the_same_bytes(arena: HostArena) -> None:
    fd = arena.export()
    other = open_arena(fd, arena.size, CPU)
    os.close(fd)
    ours, theirs = arena.tensor(256, (2, 8), torch.float32), other.tensor(256, (2, 8), torch.float32)
    ours.copy_(torch.arange(16.0).view(2, 8))
    assert torch.equal(theirs, ours)
    theirs[1, 3] = -5.0
    assert ours[1, 3] == -5.0
    assert ours.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_tensors_have_storages_of_their_own(arena: HostArena, dtype: torch.dtype) -> None:
    """A view into one large storage would let ``x.untyped_storage()`` reach the other arguments."""
    made = arena.tensor(512, (4, 16), dtype)
    assert made.is_contiguous()
    assert made.storage_offset() == 0
    assert made.untyped_storage().nbytes() == 64 * dtype.itemsize
    assert type(made) is torch.Tensor
    assert made._base is None or made._base.untyped_storage().nbytes() == 64 * dtype.itemsize


@pytest.mark.parametrize(
    ("offset", "shape"), [(-4, (1,)), (3 * 4096, (1,)), (3 * 4096 - 4, (2,)), (0, (4096,)), (1 << 40, (1,))]
)
def test_nothing_lies_outside(arena: HostArena, offset: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="of an arena of 12288"):
        arena.tensor(offset, shape, torch.float32)


def test_the_last_byte_is_inside(arena: HostArena) -> None:
    arena.tensor(3 * 4096 - 4, (1,), torch.float32).fill_(1.0)
    arena.tensor(3 * 4096 - 1, (1,), torch.uint8).fill_(1)
    assert arena.tensor(3 * 4096, (0, 4), torch.float32).shape == (0, 4)


@pytest.mark.parametrize(("offset", "dtype"), [(2, torch.float32), (1, torch.bfloat16), (4, torch.int64)])
def test_elements_are_aligned(arena: HostArena, offset: int, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        arena.tensor(offset, (2,), dtype)


@pytest.mark.parametrize("size", [0, 4096, 4 * 4096])
def test_the_other_side_can_not_change_the_size(arena: HostArena, size: int) -> None:
    fd = arena.export()
    with pytest.raises(PermissionError):
        os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, 1033, 0x0010)  # a seal against writing would stop the judge
    path = f"/proc/self/fd/{fd}"
    with pytest.raises(PermissionError), open(path, "r+b") as again:
        again.truncate(size)
    os.close(fd)
    assert arena.tensor(0, (arena.size,), torch.uint8).sum() == 0


def test_a_small_arena_is_a_page() -> None:
    assert create_arena(1, CPU).size == mmap.PAGESIZE


def test_nothing_stays_open() -> None:
    def left_open() -> set[tuple[str, str]]:
        gc.collect()
        return descriptors() - before

    gc.collect()
    before = descriptors()
    kept = []
    for _ in range(20):
        made = HostArena.create(1 << 16)
        fd = made.export()
        other = open_arena(fd, made.size, CPU)
        os.close(fd)
        kept.append(other.tensor(0, (4,), torch.float32))
        made.close()
        made.close()
        other.close()
    del made, other
    kept[-1].fill_(2.0)  # the memory outlives its arena
    assert kept[-1].sum() == 8.0
    kept.clear()
    assert not left_open()
    HostArena.create(1 << 16)
    assert not left_open(), "an arena that nobody closed"


def test_cursors_hand_out_aligned_places() -> None:
    cursor = Cursor()
    places = [(cursor.take(size), size) for size in (1, 256, 0, 257, 4096, 3)]
    assert [at for at, _ in places] == [0, 256, 512, 512, 1024, 5120]
    assert all(at % ALIGN == 0 for at, _ in places)
    for (at, size), (following, _) in itertools.pairwise(places):
        assert at + size <= following
    assert Cursor(1000).take(8) == 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 0)])
def test_tensors_that_lie_apart_are_seen_as_one(arena: HostArena, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    arena.tensor(0, (arena.size,), torch.uint8).fill_(0xEE)
    several = spaced(arena, 256, 512, 4, shape, dtype)
    several.copy_(torch.arange(several.numel()).view(4, *shape))
    for n in range(4):
        assert torch.equal(arena.tensor(256 + n * 512, shape, dtype), several[n])
    written = 4 * several[0].numel() * dtype.itemsize
    assert int((arena.tensor(0, (arena.size,), torch.uint8) == 0xEE).sum()) == arena.size - written


def test_the_last_of_several_ends_inside(arena: HostArena) -> None:
    assert spaced(arena, arena.size - 512 - 16, 512, 2, (4,), torch.float32).shape == (2, 4)
    with pytest.raises(ValueError, match="arena of"):
        spaced(arena, arena.size - 512, 512, 2, (4,), torch.float32)
