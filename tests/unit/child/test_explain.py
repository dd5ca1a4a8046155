"""Planted faults and the words that must come out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fk_core.child.explain import explain

REF = torch.randn(48, 1024, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def last_rows(t: Tensor) -> None:
    t[-5:] += 1


def last_columns(t: Tensor) -> None:
    t[:, -24:] = 0


def every_128th(t: Tensor) -> None:
    t[:, 5::128] *= 2


def one_row(t: Tensor) -> None:
    t[17] += 1


def one_block(t: Tensor) -> None:
    t[8:16, 256:320] += 1


def tile_tails(t: Tensor) -> None:
    t.view(48, 8, 128)[:, :, 96:] += 1


def negative(t: Tensor) -> None:
    t[t < 0] = 0


def large(t: Tensor) -> None:
    t.clamp_(-2.5, 2.5)


def scaled(t: Tensor) -> None:
    t *= 1.25


def slightly_scaled(t: Tensor) -> None:
    t *= 1.0005


def sign(t: Tensor) -> None:
    t.neg_()


def unwritten(t: Tensor) -> None:
    t[40:] = 3.39e38


def nothing(t: Tensor) -> None:
    t[:] = math.nan


def one_element(t: Tensor) -> None:
    t[3, 9] += 1


@pytest.mark.parametrize(
    ("fault", "words", "first"),
    [
        (last_rows, ["the last 5 of 48 rows"], [43, 0]),
        (last_columns, ["the last 24 of 1024 columns", "never written"], [0, 1000]),
        (every_128th, ["every 128th column from column 5", "about 2 times"], [0, 5]),
        (one_row, ["only row (17 of 48)"], [17, 0]),
        (one_block, ["rows 8 to 15 of 48", "columns 256 to 319 of 1024"], [8, 256]),
        (tile_tails, ["columns 96 to 127 of every 128"], [0, 96]),
        (negative, ["only where the expected value is negative", "zero"], None),
        (large, ["only where the expected value is large"], None),
        (scaled, ["all elements wrong", "about 1.25 times"], [0, 0]),
        (slightly_scaled, ["off by about +0.0005"], [0, 0]),
        (sign, ["the sign is wrong"], [0, 0]),
        (unwritten, ["the last 8 of 48 rows", "never written"], [40, 0]),
        (nothing, ["all elements wrong", "NaN"], [0, 0]),
        (one_element, ["a single element wrong"], [3, 9]),
    ],
)
def test_pattern(fault: Callable[[Tensor], None], words: list[str], first: list[int] | None) -> None:
    got = REF.clone()
    fault(got)
    found = explain(got != REF, got, REF)
    for word in words:
        assert word in found.pattern
    if first is not None:
        assert found.first["index"] == first
    assert found.share == pytest.approx(float((got != REF).double().mean()))


def test_scattered_faults_are_called_scattered() -> None:
    got = REF.clone()
    places = torch.rand(REF.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    got[places] += 1
    assert "scattered" in explain(got != REF, got, REF).pattern


def test_values_that_are_not_finite_are_named_and_not_carried() -> None:
    got = REF.clone()
    got[1, 2] = -math.inf
    found = explain(got != REF, got, REF)
    assert found.nonfinite
    assert found.first["got"] is None
    assert found.first["note"] == "got is -inf"


def test_first_index_beyond_what_is_looked_at_in_one_go() -> None:
    got = torch.zeros(3, 100_000)
    ref = torch.zeros(3, 100_000)
    got[2, 77_777] = 1
    assert explain(got != ref, got, ref).first["index"] == [2, 77_777]


def test_a_large_output_is_sampled_over_all_columns() -> None:
    ref = torch.ones(64, 65536)
    got = ref.clone()
    got[:, ::2] = 0.5
    found = explain(got != ref, got, ref)
    assert "every 2nd column from column 0" in found.pattern
    assert "0.5" in found.pattern
