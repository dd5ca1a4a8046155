"""Which extents lie in the same memory, against looking at every pair."""

from __future__ import annotations

import itertools
import random

import torch

from fk_core.child.memory import MOST, Extents, last_stride, shared


def test_the_last_stride_counts_where_a_row_has_a_next_element() -> None:
    x = torch.zeros(4, 6)
    assert [last_stride(t) for t in (x, x[:, :4], x[:, ::2], x.T, x[:1].expand(4, 6), x[:, :1].expand(4, 6))] == [
        1, 1, 2, 6, 1, 0,
    ]  # fmt: skip
    assert [last_stride(t) for t in (x[:, ::6], x[:0, ::2], torch.zeros(()))] == [1, 1, 1]


def test_extents_that_touch_share_nothing() -> None:
    assert shared([(0, 8, 0), (8, 16, 1), (16, 24, 2)]) == []


def test_one_owner_may_overlap_with_itself() -> None:
    assert shared([(0, 8, 3), (0, 8, 3), (4, 12, 3)]) == []


def test_empty_extents_lie_nowhere() -> None:
    assert shared([(0, 0, 0), (0, 0, 1), (4, 4, 2), (0, 8, 3)]) == []


def test_an_extent_within_a_much_longer_one() -> None:
    assert shared([(0, 100, 0), (10, 20, 0), (50, 60, 1)]) == [[0, 1]]


def test_the_number_of_pairs_is_bounded() -> None:
    assert len(shared([(0, 8, n) for n in range(500)])) == MOST


def test_against_every_pair() -> None:
    source = random.Random(5)
    for _ in range(400):
        extents = []
        for owner in range(12):
            start = source.randrange(0, 400)
            extents.append((start, start + source.randrange(0, 12), owner))
        pairs = {
            (min(a[2], b[2]), max(a[2], b[2]))
            for a, b in itertools.combinations(extents, 2)
            if a[0] < b[1] and b[0] < a[1] and a[0] < a[1] and b[0] < b[1]
        }
        found = {tuple(pair) for pair in shared(extents)}
        assert found <= pairs
        assert bool(found) is bool(pairs)


def test_held_extents_against_every_one() -> None:
    source = random.Random(6)
    for _ in range(300):
        held, every = Extents(), []
        for _ in range(60):
            start = source.randrange(400)
            place = (start, start + source.choice((0, 1, 3, 8, 8, 150)))
            first, last = place
            assert held.touched_by(place) is any(
                first < end and begin < last and begin < end and first < last for begin, end in every
            )
            if every and source.random() < 0.3:
                held.remove(every.pop(source.randrange(len(every))))
            else:
                held.add(place)
                every.append(place)
