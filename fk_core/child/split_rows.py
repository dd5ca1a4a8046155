"""Several leading dimensions in place of one: how long their sides are, and how the arguments lie in memory.

Engines norm [tokens, heads, head_dim], where the heads may be the first of a longer projection, and take softmax of
[batch, heads, queries, keys], where keys may be padded.
"""

from __future__ import annotations

import random

from fk_core.child import row_counts
from fk_core.child.layouts import Layout

Sides = tuple[int, ...]
SAID: dict[Layout, str] = {
    "": "",
    "near": ", with a gap between them",
    "far": ", that lie far apart",
    "distant": ", that lie more than four widths apart",
    "heads": ", the second a slice of a longer one",
}


def tries(few: Sides, many: tuple[int, int], source: random.Random) -> list[tuple[Sides, Layout]]:
    """Sides and layouts of the calls of one form: short sides are of ``few``, long ones within ``many``.

    Either of two sides is once the long one, since kernels loop over one and launch over the other, and the other is
    once 1: a batch of one, or the one token of each of a batch. With three there is none, so that a call has not more
    rows than it needs.
    """

    def long() -> int:
        return row_counts.draw(many, source, padded=source.random() < 0.5)

    def short() -> int:
        return source.choice(few)

    def three() -> Sides:
        sides = [*split(2, source, few), source.choice((1, few[0]))]
        source.shuffle(sides)
        return tuple(sides)

    return [
        ((short(), long()), ""),
        ((long(), short()), ""),
        ((1, long()), ""),
        ((long(), 1), source.choice(("", "heads"))),
        ((short(), long()), "heads"),
        (three(), ""),
        (three(), "near"),
    ]


def split(count: int, source: random.Random, sides: Sides) -> Sides:
    """``count`` sides, each drawn from ``sides``, not all the same where that can be."""
    found = [source.choice(sides) for _ in range(count)]
    others = [side for side in sides if side != found[0]]
    if len(set(found)) == 1 and others:
        found[-1] = source.choice(others)
    source.shuffle(found)
    return tuple(found)
