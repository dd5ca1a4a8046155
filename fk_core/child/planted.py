"""A slow-down of known size, planted in a forward function to see whether the timing notices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

EVERY = 33
SHARE = 0.03
_LARGE_ROWS = 1024

Forward = Callable[..., Any]


class PlantedGroup:
    """Wraps the weight copies of a module so that they count their calls together."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, forward: Forward) -> Planted:
        return Planted(forward, self)

    def due(self) -> bool:
        self.calls += 1
        return self.calls % EVERY == 0


class Planted:
    """Does about 3% more work than ``forward``: every 33rd call twice, or, where a case has many rows, 3% of these.

    The extra work runs on copies, so that results stay right for operators that write into their arguments.
    """

    def __init__(self, forward: Forward, group: PlantedGroup) -> None:
        self.forward, self.group = forward, group
        self.copies: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        rows = inputs[0].shape[0]
        large = rows >= _LARGE_ROWS
        kept = math.ceil(SHARE * rows) if large else rows
        shape = (len(inputs), kept, *inputs[0].shape[1:])
        if shape not in self.copies:
            self.copies[shape] = [t[:kept].clone() for t in inputs]
        if self.group.due() or large:
            self.forward(*self.copies[shape])
        return self.forward(*inputs)
