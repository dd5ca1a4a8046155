"""Row counts that no case has, one between each two powers of two: kernels choose tiles and branches by them."""

from __future__ import annotations

import random

FIRST = 16
LANES = 8
"""Engines pad batches to multiples of this: a kernel tuned for them may be wrong between them, or there only."""

Octave = tuple[int, int]


def octaves(low: int, high: int) -> list[Octave]:
    """(17, 31), (33, 63) and so on within ``low`` to ``high``: what lies between two powers of two."""
    found = []
    start = FIRST
    while start < high:
        first, last = max(low, start + 1), min(high, 2 * start - 1)
        if first <= last:
            found.append((first, last))
        start *= 2
    return found


def draw(octave: Octave, source: random.Random, *, padded: bool = False) -> int:
    """A count of the octave, more often a small one: odd, or if ``padded`` a multiple of ``LANES`` where it has one."""
    first, last = octave
    if padded and last // LANES * LANES >= first:
        first, step = -(-first // LANES) * LANES, LANES
    else:
        first, step = min(first | 1, last), 2
    return first + step * int(source.random() ** 2 * ((last - first) // step + 1))
