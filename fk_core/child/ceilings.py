"""What the device can do at best, measured once per process: bandwidth, matrix rate, the cost of an empty node."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import torch

_COPY_BYTES = 1 << 30
_MATRIX = 8192
_NODES = 256


class Ceilings:
    """Measured on first use, and once more when the device is known to be held alone; on the CPU there are none and
    every figure is None.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.alone = False
        """Whether the figures were taken while nobody else used the device."""

    def settle(self) -> None:
        """Measure anew what was measured on a device that others may have used; call it under an exclusive lease."""
        if self.alone or self.device.type == "cpu":
            return
        for name in ("bandwidth", "matrix_rate", "empty_us"):
            if self.__dict__.pop(name, None) is not None:
                getattr(self, name)
        self.alone = True

    @cached_property
    def bandwidth(self) -> float | None:
        """Bytes a second of a large device copy, read and written bytes counted."""
        if self.device.type == "cpu":
            return None
        source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=self.device).random_(0, 255)
        target = torch.empty_like(source)
        best = min(self._seconds(lambda: target.copy_(source), 5) for _ in range(3))
        return 2 * _COPY_BYTES / best

    @cached_property
    def matrix_rate(self) -> float | None:
        """FLOP a second of a large bf16 matrix product on random values."""
        if self.device.type == "cpu":
            return None
        a = torch.randn(_MATRIX, _MATRIX, device=self.device, dtype=torch.bfloat16)
        b = torch.randn(_MATRIX, _MATRIX, device=self.device, dtype=torch.bfloat16)
        best = min(self._seconds(lambda: torch.mm(a, b), 5) for _ in range(3))
        return 2.0 * _MATRIX**3 / best

    @cached_property
    def empty_us(self) -> float | None:
        """Microseconds that one more kernel with next to nothing to do adds to a graph."""
        if self.device.type == "cpu":
            return None
        x = torch.zeros(1, device=self.device)
        stream = torch.cuda.Stream(self.device)
        x.add_(1)
        torch.cuda.synchronize()

        def graph_of(nodes: int) -> torch.cuda.CUDAGraph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                for _ in range(nodes):
                    x.add_(1)
                graph.capture_end()
            return graph

        few, many = graph_of(_NODES // 4), graph_of(_NODES)
        spread = [self._seconds(many.replay, 20) - self._seconds(few.replay, 20) for _ in range(5)]
        return sorted(spread)[2] * 1e6 / (_NODES - _NODES // 4)

    def floor_us(self, *, cold_bytes: float, flops: float) -> float | None:
        """No kernel can take less: cold bytes at the bandwidth, FLOPs at the matrix rate, or an empty node."""
        if self.device.type == "cpu":
            return None
        assert self.bandwidth
        assert self.empty_us is not None
        moved = cold_bytes / self.bandwidth * 1e6
        # The matrix rate is measured only where it could matter: 1e15 FLOP/s is above every part in use.
        matters = flops / 1e15 * 1e6 > 0.5 * moved
        computed = flops / self.matrix_rate * 1e6 if matters and self.matrix_rate else 0.0
        return max(moved, computed, self.empty_us)

    def as_dict(self) -> dict[str, Any]:
        return {
            "bandwidth_bytes_s": self.bandwidth,
            "matrix_flop_s": self.matrix_rate,
            "empty_node_us": self.empty_us,
        }

    def _seconds(self, work: Any, repeats: int) -> float:
        work()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / repeats
