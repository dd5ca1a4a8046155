"""Compare fused and plain measurement on outputs full of edges; as a script, by the interpreter on the CPU."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from fk_core.child import interpreter
from fk_core.child.elementwise import COLUMNS, FP32_UNIT, MAXIMA, Yardstick, measure
from fk_core.child.measure_kernel import measure_fused


def combined(table: Tensor) -> dict[str, float]:
    return {
        name: float(table[:, column].max() if name in MAXIMA else table[:, column].sum())
        for column, name in enumerate(COLUMNS)
    }


def edges(width: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    ref = torch.randn(5, width, generator=source, dtype=torch.float64)
    got = (ref * (1 + 1e-3 * torch.randn(5, width, generator=source))).to(dtype)
    mag = ref.abs() * 3
    for row, column, right, said in (
        (0, 0, math.nan, math.nan),
        (1, 1, math.inf, math.inf),
        (2, 2, 0.5, math.nan),
        (3, 3, 1e39, math.inf),
        (4, 3, -math.inf, math.inf),
        (4, 0, 1e-42, 0.0),
        (4, 1, 0.1, 3.0),
        (4, 2, 0.0, 0.0),
        (0, 2, torch.finfo(dtype).max, math.inf),
    ):
        ref[row, column], got[row, column] = right, said
    mag[2, 0], mag[2, 1], mag[2, 3] = -math.inf, math.nan, math.inf
    return got, ref, mag


def compare_paths(device: str, widths: tuple[int, ...]) -> int:
    """How many measurements agreed; raises AssertionError at the first that did not."""
    count = 0
    for dtype, width, u, absolute, with_mag in itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), widths, (FP32_UNIT, 2.0**-9), (False, True), (True, False)
    ):
        got, ref, mag = (tensor.to(device) for tensor in edges(width, dtype, count))
        for generic in (True, False):
            yard = Yardstick(dtype, 5.0, u, generic, absolute)
            plain = combined(measure(got, ref, mag if with_mag else None, yard))
            fused = combined(measure_fused(got, ref, mag if with_mag else None, yard))
            for name, value in plain.items():
                same = value == fused[name] or abs(value - fused[name]) <= 1e-6 * abs(value)
                assert same, (dtype, width, u, absolute, with_mag, generic, name, value, fused[name])
            assert plain["wrong"] > 0
            assert plain["wrong_nonfinite"] > 0
            count += 1
    return count


if __name__ == "__main__":
    interpreter.install()
    assert compare_paths("cpu", (4, 700)) == 96
