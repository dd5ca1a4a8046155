"""The secret values that the slots of a timed case hold until the next fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import prod
from typing import Any

import torch
from torch import Tensor

from fk_core.child.calls import Call, stacked
from fk_core.child.distributions import Drawer, draw, generator

MakeInputs = Callable[[Call, Callable[[str], Tensor]], dict[str, Tensor]]
_LEAST_POOL = 4096
_GROUP_BYTES = 32 << 20
"""Of arguments drawn at once: more would take no fewer operations worth counting, and more memory for a while."""

USUAL = (1.0, 0.0)
LOOKS = (USUAL, (1.0, 100.0), USUAL, (2.0**-11, 0.0), USUAL, (8.0, 0.0), USUAL, USUAL)
"""What normal values of a slot are multiplied by, and what is added. Slots take them in turn. At 100 the exponential
overflows; the squares of 2^-11 are below any usual eps. Larger values would fail a softmax that is honest:
exp2(x * log2e - max) is off by a rounding of x."""


class Fill:
    """Values of any of ``slots`` slots, made anew when asked for: all follow from ``seed``.

    Where rows are independent, slots are drawn as ``group`` neighbours at once, as one call of so many more rows.
    On a CPU, where drawing costs more than many an operator, values are windows at random offsets of one drawn pool,
    times a random factor: no two slots hold the same values, and every fill has another pool.

    Some slots hold small, large or shifted values (``LOOKS``), so that a kernel that is right for others alone is found
    out in timed calls, too. Most hold usual ones, which are what is to be timed.
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        call: Call,
        slots: int,
        make_inputs: MakeInputs,
        seed: int,
        device: torch.device,
    ) -> None:
        self.call, self.slots, self.make_inputs, self.seed, self.device = call, slots, make_inputs, seed, device
        self._first_look = _hash(seed, 0, "look") % len(LOOKS)
        self._pools: dict[int, Tensor] = {}
        self._latest: tuple[int, dict[str, Tensor]] = (-1, {})
        size = max(1, sum(prod(shape) for shape in call.shapes.values()) * call.dtype.itemsize)
        fits = 1 if self._windows else max(1, min(slots, _GROUP_BYTES // size))
        several = stacked(task, call, fits)
        self.group, self._drawn = (1, call) if several is None else (fits, several)
        if self._windows:
            for shape in call.shapes.values():
                self._pool(prod(shape))

    def slot(self, number: int) -> dict[str, Tensor]:
        """The arguments of one slot, each contiguous."""
        if self._windows:
            return self._window(number)
        within = number % self.group
        if self._latest[0] != number - within:
            self._latest = number - within, self.neighbours(number - within)
        return {name: values[within].clone() for name, values in self._latest[1].items()}

    def neighbours(self, first: int) -> dict[str, Tensor]:
        """The arguments of the ``group`` slots from ``first`` on, or of those that are left, each [slots, *shape].

        ``first`` is a multiple of ``group``.
        """
        if self._windows:
            return {name: values.unsqueeze(0) for name, values in self._window(first).items()}
        call, shapes = self._drawn, self.call.shapes
        source = generator(self.seed + 1 + first, self.device)
        usual = Drawer("normal", call.shapes, call.dtype, source)
        looks = [self.look(number) for number in range(first, first + self.group)]
        times, plus = torch.tensor(looks, dtype=call.dtype, device=self.device).unsqueeze(-1).unbind(1)

        def looking(name: str) -> Tensor:
            values = usual(name)
            return values.reshape(self.group, -1).mul_(times).add_(plus).view(values.shape)

        made = self.make_inputs(call, looking if call.dtype.is_floating_point else usual)
        return {name: made[name].reshape(self.group, *shapes[name])[: self.slots - first] for name in made}

    def look(self, number: int) -> tuple[float, float]:
        """Which of ``LOOKS`` the floating-point values of a slot have."""
        return LOOKS[(self._first_look + number) % len(LOOKS)]

    def _window(self, number: int) -> dict[str, Tensor]:
        times, plus = self.look(number)

        def window(name: str) -> Tensor:
            shape = self.call.shapes[name]
            count = prod(shape)
            pool = self._pool(count)
            start = _hash(self.seed, number, name) % (pool.numel() - count + 1)
            factor = 0.5 + _hash(self.seed, number, f"{name} factor") / 2**64
            values = pool[start : start + count].view(shape) * (factor * times)
            return values.add_(plus) if plus else values

        return {name: tensor.contiguous() for name, tensor in self.make_inputs(self.call, window).items()}

    @property
    def _windows(self) -> bool:
        return self.device.type == "cpu" and self.call.dtype.is_floating_point

    def _pool(self, count: int) -> Tensor:
        pool = self._pools.get(count)
        if pool is None:
            size = count + max(count, _LEAST_POOL)
            pool = draw("normal", (size,), self.call.dtype, generator(self.seed, self.device))
            self._pools[count] = pool
        return pool


def _hash(seed: int, number: int, name: str) -> int:
    return int.from_bytes(blake2b(f"{seed}/{number}/{name}".encode(), digest_size=8).digest(), "little")
