"""Arguments that are parts of longer tensors."""

from __future__ import annotations

import math
import random

import pytest
import torch

from fk_core.child import layouts
from fk_core.child.layouts import Layout, Shape

SEEDS = range(200)


def drawn(shape: Shape, layout: Layout) -> list[Shape]:
    return [layouts.buffer_shape(shape, layout, random.Random(seed)) for seed in SEEDS]


@pytest.mark.parametrize(
    ("layout", "least", "most"), [("near", 1 + 16 / 4096, 1.5), ("far", 1.5, 4.0), ("distant", 4.0, 40.0)]
)
def test_rows_lie_a_little_or_far_apart(layout: Layout, least: float, most: float) -> None:
    longer = drawn((5, 4096), layout)
    assert {rows for rows, _ in longer} == {5}
    assert all(width % 16 == 0 for _, width in longer)
    widths = [width / 4096 for _, width in longer]
    assert least <= min(widths) < least + (most - least) / 8
    assert most - (most - least) / 8 < max(widths) <= most


@pytest.mark.parametrize("width", [1, 3, 4, 97])
def test_rows_of_any_width_lie_far_apart(width: int) -> None:
    assert all(longer >= 1.5 * width for _, longer in drawn((2, width), "far"))


@pytest.mark.parametrize("layout", ["near", "far", "distant"])
@pytest.mark.parametrize(("width", "lanes"), [(97, 1), (4998, 2), (4, 4), (1000, 8), (4096, 16), (48, 16)])
def test_rows_stay_as_aligned_as_contiguous_ones(layout: Layout, width: int, lanes: int) -> None:
    gaps = [longer - width for _, longer in drawn((2, width), layout)]
    assert math.gcd(*gaps) == lanes


def test_distant_rows_take_no_more_memory_than_far_ones_where_they_are_long() -> None:
    assert all(4.0 <= longer / 201088 <= 5.1 for _, longer in drawn((8, 201088), "distant"))
    assert all(rows * longer <= 2.01 * layouts.MOST_ELEMENTS for rows, longer in drawn((2, 28672), "distant"))


def test_heads_are_the_first_of_more() -> None:
    heads = [heads for _, heads, _ in drawn((3, 8, 64), "heads")]
    assert min(heads) == 9
    assert sum(12 <= count <= 32 for count in heads) > 30
    assert sum(count > 32 for count in heads) > 80
    assert max(heads) > 240
    assert {(tokens, width) for tokens, _, width in drawn((3, 8, 64), "heads")} == {(3, 64)}
    with pytest.raises(ValueError, match="no heads"):
        layouts.buffer_shape((3, 64), "heads", random.Random(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32])
@pytest.mark.parametrize(("shape", "longer"), [((4, 32), (4, 48)), ((2, 3, 32), (2, 7, 32)), ((2, 3, 32), (2, 3, 48))])
def test_values_lie_within_and_nan_around_them(shape: Shape, longer: Shape, dtype: torch.dtype) -> None:
    x = torch.ones(shape).to(dtype)
    buffer = layouts.spread(x, longer)
    within = layouts.part(buffer, shape)
    assert torch.equal(within, x)
    assert within.stride(-1) == 1
    assert not within.is_contiguous()
    within.fill_(0)
    assert int((buffer == 0).sum()) == x.numel()
    other = (buffer == torch.iinfo(dtype).max) if dtype == torch.int32 else buffer.isnan()
    assert int(other.sum()) == buffer.numel() - x.numel()


def test_what_is_contiguous_stays_where_it_is() -> None:
    x = torch.randn(4, 32)
    assert layouts.buffer_shape((4, 32), "", random.Random(1)) == (4, 32)
    assert layouts.spread(x, (4, 32)) is x
