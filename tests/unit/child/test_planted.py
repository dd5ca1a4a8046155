"""The planted slow-down: how much more work it does, and that results stay right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fk_core.child.planted import EVERY, SHARE, PlantedGroup


class Counted:
    """Counts calls and rows."""

    def __init__(self) -> None:
        self.calls = self.rows = 0

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        self.calls += 1
        self.rows += x.shape[0]
        if residual is not None:
            residual.add_(x)
        return x * 2


@pytest.mark.parametrize("copies", [1, 4, 40])
def test_every_33rd_call_is_made_twice(copies: int) -> None:
    group, counted = PlantedGroup(), Counted()
    planted = [group(counted) for _ in range(copies)]
    x = torch.ones(16, 8)
    for n in range(EVERY * 10):
        assert torch.equal(planted[n % copies](x), x * 2)
    assert counted.calls == EVERY * 10 + 10
    assert counted.calls / (EVERY * 10) - 1 == pytest.approx(SHARE, rel=0.02)


@pytest.mark.parametrize("rows", [1024, 4096, 16384])
def test_of_many_rows_three_percent_are_done_twice(rows: int) -> None:
    counted = Counted()
    planted = PlantedGroup()(counted)
    x = torch.ones(rows, 2)
    for _ in range(40):
        assert planted(x).shape == (rows, 2)
    assert counted.rows / (40 * rows) - 1 == pytest.approx(SHARE, rel=0.03)


def test_arguments_that_are_written_to_are_written_once() -> None:
    planted = PlantedGroup()(Counted())
    for rows in (16, 2048):
        for _ in range(EVERY + 1):
            x, residual = torch.ones(rows, 4), torch.zeros(rows, 4)
            planted(x, residual)
            assert torch.equal(residual, x)


def test_one_module_in_two_forms() -> None:
    """The extra work is that of the call it is added to."""
    seen: list[int] = []

    def forward(*inputs: Tensor) -> Tensor:
        seen.append(len(inputs))
        return inputs[0]

    planted = PlantedGroup()(forward)
    x = torch.ones(2048, 4)
    planted(x), planted(x, x.clone()), planted(x)
    assert seen == [1, 1, 2, 2, 1, 1]
