"""The real thing: a zygote with torch and triton, forks that compute, at every level."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
from tests.sandbox.kit import PRELOAD, ROLES, Start, run, say

KERNEL = '''
import os, importlib.util
open('kernel.py', 'w').write("""
import torch, triton, triton.language as tl
@triton.jit
def double(X, Y, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(Y + i, tl.load(X + i, mask=i < N) * 2, mask=i < N)
""")
spec = importlib.util.spec_from_file_location('kernel', 'kernel.py')
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
import torch
x = torch.arange(300, dtype=torch.bfloat16) / 7
y = torch.empty_like(x)
kernel.double[(3,)](x, y, 300, 128)
a = torch.ones(256, 256)
out = [torch.equal(y, x * 2), float((a @ a).sum()), torch.cuda.is_initialized(), torch.get_num_threads()]
'''


@pytest.fixture(scope="module")
def warm(settings: Settings) -> Iterator[Zygote]:
    zygote = Zygote(settings, interpret=True, preload=("torch", "triton", *PRELOAD), roles=ROLES)
    said = zygote.start(120.0)
    say(f"zygote warm after {said['seconds']:.2f} s: torch {said['torch']}, triton {said['triton']}")
    assert len(said["torch"].split(".")) >= 3
    assert said["threads"] == ["fk-zygote"]
    yield zygote
    zygote.close()


def test_triton_and_torch_work_in_forks(start: Start, level: str, warm: Zygote) -> None:
    for _ in range(3):  # a zygote that had run a tensor operation on many threads would hang its forks here
        assert run(start(level, zygote=warm), KERNEL, 60.0) == [True, 256.0**3, False, 1]


def test_cost_of_a_start(start: Start, level: str, warm: Zygote) -> None:
    """Prints what a start and an end cost; asserts nothing about them, machines differ."""
    started, ended = [], []
    for _ in range(10):
        begin = time.perf_counter()
        child = start(level, zygote=warm)
        run(child, "out = 1")
        started.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        child.kill()
        ended.append(time.perf_counter() - begin)
    middle = [1e3 * sorted(values)[len(values) // 2] for values in (started, ended)]
    say(f"{level}: start to first answer {middle[0]:.1f} ms, end {middle[1]:.1f} ms (medians of ten)")


def test_the_zygote_stays_at_one_thread(warm: Zygote) -> None:
    with open(f"/proc/{warm.pid}/status", encoding="ascii") as file:
        assert "Threads:\t1\n" in file.read()
