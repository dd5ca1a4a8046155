"""Ahead-of-time builds of candidates, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fk_core.sandbox.triton_cache import copy_cache

ROOT = Path(__file__).parents[3]
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

class Doubled(torch.nn.Module):
    def __init__(self, width: int, block: int = 128):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.block = block

    def forward(self, x):
        y = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), self.block),)](x, y, x.numel(), BLOCK=self.block)
        return y
"""
SIGNATURE = ["*bf16", "*bf16", "i32", "constexpr"]
TUNED = TRITON.replace(
    "@triton.jit",
    "@triton.autotune([triton.Config({'BLOCK': b}) for b in (64, 256)], key=['n'])\n@triton.jit",
).replace(", BLOCK=self.block)", ")")


def call(**more: Any) -> dict[str, Any]:
    row = {
        "entry": "Doubled",
        "init": {"width": 64},
        "dtype": "bfloat16",
        "state": {"weight": [64]},
        "inputs": [[[4, 64]], [[3, 33]]],
    }
    return row | more


FAILING: dict[str, tuple[str, str]] = {
    "import": ("import no_such_module_at_all", "ModuleNotFoundError"),
    "exit at import": ("raise SystemExit(3)", "SystemExit"),
    "no class": ("x = 1", "ContractBroken"),
    "forward": (TRITON.replace("y = torch.empty_like(x)", "raise ValueError('not here')"), "ValueError: not here"),
    "a device that is not there": (TRITON.replace("y = torch.empty_like(x)", "y = x.cuda()"), ""),
    "a kernel that does not compile": (TRITON.replace("tl.load(x + at, mask=at < n) * 2", "tl.nothing(x)"), ""),
}
PICKY = TRITON.replace("y = torch", "if x.shape[0] == 7: raise ValueError('no rows')\n        y = torch")
JOBS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "two block sizes": (TRITON, [call(), call(init={"width": 64, "block": 256})]),
    "autotuned": (TUNED, [call(inputs=[[[4, 64]]])]),
    "some inputs": (PICKY, [call(inputs=[[[4, 64]], [[7, 64]], [[7, 32]], [[3, 33]]])]),
    "many inputs": (PICKY, [call(inputs=[[[n, 64]] for n in (1, 7, 7, 7, 7, 1, 7, 1)])]),
    "one of two": (TRITON, [call(entry="Missing"), call(inputs=[[[4, 64]]])]),
} | {name: (source, [call()]) for name, (source, _) in FAILING.items()}


@dataclass
class Built:
    told: dict[str, Any]
    binaries: list[str]


def run(folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All jobs, one process for the imports."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.child.builder_probe"],
        input=json.dumps(jobs), capture_output=True, env=env, cwd=ROOT, timeout=200, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[str, Built]:
    jobs = []
    for number, (source, calls) in enumerate(JOBS.values()):
        path = folder / f"kernel_{number}.py"
        path.write_text(source, encoding="utf-8")
        jobs.append({"path": str(path), "cache": str(folder / f"cache_{number}"), "calls": calls})
    told = run(folder, jobs)
    binaries = [sorted(p.name for p in Path(str(job["cache"])).rglob("*.cubin")) for job in jobs]
    return {n: Built(t, b) for n, t, b in zip(JOBS, told, binaries, strict=True)}


def test_a_copied_cache_serves_the_same_source_elsewhere(built: dict[str, Built], folder: Path) -> None:
    """Who finds its kernels compiled writes nothing; a cache whose index names the old place serves nobody."""
    source, calls = JOBS["two block sizes"]
    path, copied, stale = folder / "elsewhere.py", folder / "copied", folder / "stale"
    path.write_text(source, encoding="utf-8")
    original = folder / "cache_0"
    assert copy_cache(original, copied) > 0
    shutil.copytree(original, stale)
    moved = folder / "cache_0_gone"
    original.rename(moved)
    try:
        before = {cache: files(cache) for cache in (copied, stale)}
        told = run(folder, [{"path": str(path), "cache": str(c), "calls": calls} for c in (copied, stale)])
    finally:
        moved.rename(original)
    assert [t["done"] for t in told] == [[[0, 1], [0, 1]]] * 2
    assert files(copied) == before[copied]
    assert files(stale) != before[stale]


def files(cache: Path) -> dict[str, int]:
    return {str(p.relative_to(cache)): p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file()}


def test_kernels_are_compiled_into_the_cache(built: dict[str, Built]) -> None:
    found = built["two block sizes"]
    assert found.told == {"done": [[0, 1], [0, 1]], "failed": "", "exit": 0, "signatures": [SIGNATURE]}
    # Sizes that 16 divides and others, each with two block sizes.
    assert found.binaries == ["double.cubin"] * 4


def test_an_autotuner_compiles_all_its_configurations(built: dict[str, Built]) -> None:
    found = built["autotuned"]
    assert (found.told["done"], found.told["failed"]) == ([[0]], "")
    assert len(found.binaries) == 2


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_is_told_and_does_no_harm(built: dict[str, Built], name: str) -> None:
    told = built[name].told
    assert (told["done"], told["exit"], told["signatures"]) == ([[]], 0, [])
    assert told["failed"]
    assert FAILING[name][1] in told["failed"]
    assert built[name].binaries == []


def test_one_call_that_fails_leaves_the_others(built: dict[str, Built]) -> None:
    found = built["one of two"]
    assert found.told["done"] == [[], [0]]
    assert "Missing" in found.told["failed"]
    assert len(found.binaries) == 1


def test_inputs_that_fail_leave_the_others(built: dict[str, Built]) -> None:
    """Up to a number of failures: then all are likely to fail."""
    assert built["some inputs"].told["done"] == [[0, 3]]
    assert len(built["some inputs"].binaries) == 2
    assert built["many inputs"].told["done"] == [[0]]
    assert built["many inputs"].told["failed"].count("ValueError: no rows") == 4
