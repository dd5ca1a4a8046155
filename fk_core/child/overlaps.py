"""Which tensors lie in the same memory, from their extents."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 16


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
