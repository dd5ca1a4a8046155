"""The gate and the flush: that they compile without a GPU, and that a gate reads where the judge expects it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fk_core.child.kernels import SAMPLES, positions

ROOT = Path(__file__).parents[3]


def probe(action: str, argument: str, folder: Path, *, interpret: bool) -> Any:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder / "cache")}
    if interpret:
        env["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.child.kernels_probe", action, argument],
        capture_output=True, env=env, cwd=ROOT, timeout=120, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_they_compile_ahead_of_time(tmp_path: Path) -> None:
    for found in probe("compile", "90,100", tmp_path, interpret=False):
        assert found["again"], "compiled once for this process and all that it forks"
        assert found["folder_kept"], "the cache directory of others is as it was"
        assert not found["cuda"]
        assert set(found["built"]) == {"fk_gate", "fk_refresh", "fk_flush"}
        for binary in found["built"].values():
            assert binary["elf"]
            assert binary["holds_name"]
            assert binary["threads"] == 128
            assert 0 <= binary["shared"] <= 48 << 10, "no opt-in to more shared memory is made at launch"
    assert not list((tmp_path / "cache").glob("*/fk_*")), "nothing of it lies where a candidate could change it"


def test_a_gate_samples_where_the_judge_looks_and_copies_everything(tmp_path: Path) -> None:
    assert probe("interpret", str(tmp_path / "fk_kernels.py"), tmp_path, interpret=True) == {"wrong": []}


@pytest.mark.parametrize("words", [1, 2, 3, 31, 4096, 100_003, 2**30])
def test_positions_are_inside(words: int) -> None:
    for seed in (0, 1, 2**24 - 1, 2**24 + 40, 12345):
        found = positions(seed, words)
        assert len(found) == SAMPLES
        assert all(0 <= at < words for at in found)


def test_positions_are_spread_evenly() -> None:
    words, bins = 100_000, 50
    counts = Counter(at * bins // words for seed in range(2000) for at in positions(seed, words))
    expected = 2000 * SAMPLES / bins
    chi2 = sum((counts[b] - expected) ** 2 / expected for b in range(bins))
    # 49 degrees of freedom: mean 49, standard deviation 9.9.
    assert chi2 < 49 + 5 * math.sqrt(98), chi2


def test_neighbouring_seeds_read_elsewhere() -> None:
    """Slots of one layout have consecutive seeds."""
    same = sum(len(set(positions(s, 1 << 20)) & set(positions(s + 1, 1 << 20))) for s in range(300))
    assert same <= 3
    assert len({at for s in range(40) for at in positions(s, 4096)}) > 1000


def test_one_wrong_word_in_fifty_is_seen() -> None:
    """Four calls of an audit sample two times 32 words each: 2% wrong slips through seldom."""
    words, missed = 4096, 0
    bad = set(range(0, words, 50))
    for seed in range(400):
        seen = {at for call in range(4) for at in positions(seed * 1000 + call, words)}
        missed += not seen & bad
    assert missed / 400 < 0.12
