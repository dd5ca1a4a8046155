"""How much of the time each part may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Part:
    """``least_s``: with less it shows nothing; ``most_s``: what it can use."""

    letter: str
    name: str
    least_s: float
    most_s: float
    libraries: bool = False
    """Whether the production kernel libraries are put on its path."""


PARTS = {
    part.letter: part
    for part in (
        Part("e", "verdict", 60, 150, libraries=True),
        Part("a", "tests", 60, 200),
        Part("b", "corpus", 60, 900),
        Part("c", "against_itself", 60, 900, libraries=True),
        Part("d", "roundtrip", 60, 110, libraries=True),
        Part("h", "short", 30, 200, libraries=True),
        Part("f", "kills", 45, 400),
        Part("l", "levels", 60, 400),
        Part("g", "checks", 10, 40),
    )
}
"""From the most to the least valuable; the checks read what the others left."""


def chosen(wanted: str) -> list[Part]:
    """Parts in the order that was asked for, ``f:120`` with at most 120 seconds.

    Raises ``ValueError`` for a letter that means nothing.
    """
    parts: dict[str, Part] = {}
    for word in wanted.split(","):
        letter, colon, most = word.strip().partition(":")
        if letter not in PARTS:
            raise ValueError(f"no part {letter!r}; there are {', '.join(PARTS)}")
        parts[letter] = replace(PARTS[letter], most_s=float(most)) if colon else PARTS[letter]
    return list(parts.values())


def allowance(part: Part, later: Sequence[Part], left_s: float) -> float:
    """Seconds for this part so that each later one still gets its least; 0 where there is too little for it.

    Where there is not enough for all, the earlier parts get theirs.
    """
    if left_s < part.least_s:
        return 0.0
    free = left_s - sum(other.least_s for other in later)
    return min(part.most_s, max(part.least_s, free))
