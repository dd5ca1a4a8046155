"""New values for the slots of a timed case before every replay: signs flipped by a hash of place and seed.

A captured kernel can look at a few of its inputs, find those of the last replay, and leave the output of then where it
is. New inputs make that output wrong, and what the last replay left is looked at. Signs are enough, as they change what
every operator gives, and cost next to nothing; integers stay as they are.
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
class Flips:
    """Words of each block, from ``first`` to before ``end``, in which the bits ``signs`` may be flipped."""

    first: int
    end: int
    signs: int


def flips_of(argument: Argument) -> Flips | None:
    """None where nothing may be flipped. What is beyond a multiple of 16 words stays: the kernel moves several."""
    words = prod(argument.shape) * argument.dtype.itemsize // 64 * 16
    if argument.dtype not in SIGNS or not words:
        return None
    first = argument.offset // 4
    return Flips(first, first + words, SIGNS[argument.dtype])


def refreshed(
    values: dict[str, Tensor], arguments: list[Argument], block: int, slot: int, seed: int
) -> dict[str, Tensor]:
    """The arguments of a slot as a replay with ``seed`` had them. ``block``: bytes of a slot."""
    made = {}
    for argument in arguments:
        given, flips = values[argument.name], flips_of(argument)
        if flips is not None:
            given = given.clone().contiguous()
            count = flips.end - flips.first
            raw = given.view(-1)[: count * 4 // argument.dtype.itemsize].view(torch.int32)
            raw ^= flip_masks(seed, slot * block // 4 + flips.first, count, flips.signs, given.device)
        made[argument.name] = given
    return made
