"""Signs that are flipped before a replay: the kernel and the judge's arithmetic agree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fk_core.child.kernels import flip_masks
from fk_core.child.refresh import Argument, Region, refreshed, regions_of, source_of

CPU = torch.device("cpu")
KERNEL = """
import importlib.util, sys, torch
from fk_core.child import kernels

open("fk_kernels.py", "w").write(kernels._SOURCE)
spec = importlib.util.spec_from_file_location("fk_kernels", "fk_kernels.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
source = torch.randint(-(2**31), 2**31, (3000,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
for signs in (0x80008000, 0x80000000):
    target = torch.zeros_like(source)
    # Thirty blocks of a hundred words, of which the first eighty are wanted, each from seven blocks further on.
    module.fk_refresh[(2, 30)](source, target, 80, 100, signs, (1 << 30) + 5, 700, 30, 7, BLOCK=64)
    wanted = torch.arange(3000) % 100 < 80
    traded = source.view(30, 100).roll(-7, 0).reshape(-1)
    flipped = traded ^ kernels.flip_masks((1 << 30) + 5, 700, 3000, signs, source.device)
    assert torch.equal(target, torch.where(wanted, flipped, 0))
print("agreed")
"""


def test_the_kernel_does_what_the_judge_works_out(tmp_path: Path) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", KERNEL], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "agreed\n", done.stderr


@pytest.mark.parametrize(
    ("dtype", "shape", "regions"),
    [
        (torch.bfloat16, (2, 16), [Region(64, 80, 0x80008000)]),
        (torch.bfloat16, (3, 14), [Region(64, 80, 0x80008000), Region(80, 96, 0)]),
        (torch.float16, (1, 32), [Region(64, 80, 0x80008000)]),
        (torch.float32, (50,), [Region(64, 112, 0x80000000), Region(112, 128, 0)]),
        (torch.bfloat16, (31,), [Region(64, 80, 0)]),
        (torch.float32, (0, 4), []),
        (torch.int32, (17,), [Region(64, 96, 0)]),
        (torch.bool, (8,), [Region(64, 80, 0)]),
    ],
)
def test_all_values_are_moved_and_some_signs_flipped(
    dtype: torch.dtype, shape: tuple[int, ...], regions: list[Region]
) -> None:
    assert regions_of(Argument("x", 256, shape, dtype)) == regions


def test_slots_trade_places() -> None:
    for seed in (0, 5, 1 << 30):
        sources = [source_of(slot, 7, seed) for slot in range(7)]
        assert sorted(sources) == list(range(7))
        assert all(source_of(slot, 7, seed + 1) != source for slot, source in enumerate(sources))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_of_the_signs_change_and_nothing_else(dtype: torch.dtype) -> None:
    values = torch.randn(64, 128, generator=torch.Generator().manual_seed(2)).to(dtype)
    argument = Argument("x", 0, (64, 128), dtype)
    seen = [refreshed({"x": values}, [argument], 64 * 128 * 4, 3, seed)["x"] for seed in (1, 2, 1)]
    assert torch.equal(seen[0], seen[2])
    for one in seen:
        assert torch.equal(one.abs(), values.abs())
        assert 0.45 < one.ne(values).double().mean() < 0.55
    assert 0.45 < seen[0].ne(seen[1]).double().mean() < 0.55


def test_slots_differ() -> None:
    one, other = (flip_masks(7, slot * 4096, 4096, 0x80008000, CPU) for slot in (0, 1))
    assert 0.6 < one.ne(other).double().mean() < 0.9
