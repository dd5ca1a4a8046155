"""The secret values that the slots of a timed case hold until the next fill."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from fk_core.child.calls import Call
from fk_core.child.distributions import Drawer, draw, generator

MakeInputs = Callable[[Call, Callable[[str], Tensor]], dict[str, Tensor]]
_LEAST_POOL = 4096


class Fill:
    """Values of any slot, made anew when asked for: all follow from ``seed``.

    On a CPU, where drawing costs more than many an operator, values are windows at random offsets of one drawn pool,
    times a random factor: no two slots hold the same values, and every fill has another pool.
    """

    def __init__(self, call: Call, make_inputs: MakeInputs, seed: int, device: torch.device) -> None:
        self.call, self.make_inputs, self.seed, self.device = call, make_inputs, seed, device
        self._pools: dict[int, Tensor] = {}
        if self._windows:
            for shape in call.shapes.values():
                self._pool(prod(shape))

    def slot(self, number: int) -> dict[str, Tensor]:
        """The arguments of one slot, each contiguous."""
        call = self.call
        if not self._windows:
            source = generator(self.seed + 1 + number, self.device)
            return self.make_inputs(call, Drawer("normal", call.shapes, call.dtype, source))

        def window(name: str) -> Tensor:
            shape = call.shapes[name]
            count = prod(shape)
            pool = self._pool(count)
            start = _hash(self.seed, number, name) % (pool.numel() - count + 1)
            factor = 0.5 + _hash(self.seed, number, f"{name} factor") / 2**64
            return pool[start : start + count].view(shape) * factor

        return {name: tensor.contiguous() for name, tensor in self.make_inputs(call, window).items()}

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
