"""Other values for the slots of a timed case before every timed replay: those of another slot, some signs flipped.

A captured kernel can look at a few of its inputs, find those of the last replay, and leave the output of then where it
is. Other inputs make that output wrong, and what the last replay left is looked at. Both cost next to nothing: slots
trade places, so that whatever a kernel keeps of a slot's values is another slot's, and signs follow from a hash of
place and seed, so that no slot has had the very same values. Integers are traded only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fk_core.child.kernels import flip_masks

SIGNS = {torch.bfloat16: 0x80008000, torch.float16: 0x80008000, torch.float32: 0x80000000}
"""The sign bits of a word of 32 bits."""


@dataclass(frozen=True)
class Argument:
    """Where an argument lies in a block."""

    name: str
    offset: int
    """Bytes from the start of a block."""
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Region:
    """Words of each block, from ``first`` to before ``end``, in which the bits ``signs`` may be flipped."""

    first: int
    end: int
    signs: int


def regions_of(argument: Argument) -> list[Region]:
    """Where an argument's values lie: what may be flipped, then what may not.

    Both are multiples of 16 words, as the kernel moves several at a time: signs of the last few values stay, and a part
    of the gap behind them is moved along.
    """
    size = prod(argument.shape) * argument.dtype.itemsize
    first, signs = argument.offset // 4, SIGNS.get(argument.dtype, 0)
    middle = first + (size // 64 * 16 if signs else 0)
    regions = [Region(first, middle, signs), Region(middle, first + -(-size // 64) * 16, 0)]
    return [region for region in regions if region.end > region.first]


def source_of(slot: int, calls: int, seed: int) -> int:
    """The slot whose values a slot has in a replay with ``seed``, of a layout with so many calls."""
    return (slot + seed) % calls


def refreshed(
    values: dict[str, Tensor], arguments: list[Argument], block: int, slot: int, seed: int
) -> dict[str, Tensor]:
    """What :func:`source_of` a slot holds, as a replay with ``seed`` found it there. ``block``: bytes of a slot."""
    made = {}
    for argument in arguments:
        given = values[argument.name]
        for region in regions_of(argument):
            if region.signs:
                given = given.clone().contiguous()
                count = region.end - region.first
                raw = given.view(-1)[: count * 4 // argument.dtype.itemsize].view(torch.int32)
                raw ^= flip_masks(seed, slot * block // 4 + region.first, count, region.signs, given.device)
        made[argument.name] = given
    return made
