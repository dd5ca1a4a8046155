"""Signs that are flipped before a replay: the kernel and the judge's arithmetic agree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fk_core.child.kernels import flip_masks
from fk_core.child.refresh import Argument, Flips, flips_of, refreshed

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
    # Thirty blocks of a hundred words, of which the first eighty are wanted.
    module.fk_refresh[(2, 30)](source, target, 80, 100, signs, (1 << 30) + 5, 700, BLOCK=64)
    wanted = torch.arange(3000) % 100 < 80
    flipped = source ^ kernels.flip_masks((1 << 30) + 5, 700, 3000, signs, source.device)
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
    ("dtype", "shape", "flips"),
    [
        (torch.bfloat16, (3, 14), Flips(64, 80, 0x80008000)),
        (torch.float16, (1, 32), Flips(64, 80, 0x80008000)),
        (torch.float32, (50,), Flips(64, 112, 0x80000000)),
        (torch.bfloat16, (31,), None),
        (torch.float32, (0, 4), None),
        (torch.int32, (8,), None),
        (torch.bool, (8,), None),
    ],
)
def test_what_may_be_flipped(dtype: torch.dtype, shape: tuple[int, ...], flips: Flips | None) -> None:
    assert flips_of(Argument("x", 256, shape, dtype)) == flips


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
