"""CUDA and compiled Triton inside every sandbox level, and in a trusted process that can't be read by others."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_core.child.processes import thread_names
from fk_core.sandbox import levels, triton_stubs
from fk_core.sandbox.launch import Child, launch
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
from tests.sandbox.kit import PRELOAD, ROLES, run

pytestmark = pytest.mark.gpu

CONTEXT = """
import time, torch
begin = time.perf_counter()
a = torch.ones(512, 512, device='cuda')
total = float((a @ a).sum())
out = [total, round(time.perf_counter() - begin, 3)]
"""

MANAGEMENT = """
import ctypes
nvml, count = ctypes.CDLL('libnvidia-ml.so.1'), ctypes.c_uint()
out = [nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value > 0]
"""

KERNEL = """
import importlib.util, time, torch
open('kernel.py', 'w').write('''
import triton, triton.language as tl
@triton.jit
def double(X, Y, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(Y + i, tl.load(X + i, mask=i < N) * 2, mask=i < N)
''')
spec = importlib.util.spec_from_file_location('kernel', 'kernel.py')
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
x = torch.arange(3000, device='cuda', dtype=torch.bfloat16)
y = torch.empty_like(x)
begin = time.perf_counter()
kernel.double[(3,)](x, y, 3000, 1024)
torch.cuda.synchronize()
seconds = time.perf_counter() - begin
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    kernel.double[(3,)](x, y, 3000, 1024)
y.zero_()
graph.replay()
out = [torch.equal(y, x * 2), round(seconds, 3)]
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("fk-home")
    (home / "scratch").mkdir()
    return Settings(home=home, lock_dir=home / "locks")


@pytest.fixture(scope="module")
def zygote(settings: Settings) -> Iterator[Zygote]:
    preload = ("torch", "triton", *PRELOAD)
    zygote = Zygote(settings, interpret=False, preload=preload, roles=ROLES, target=90)
    said = zygote.start(120.0)
    _say(f"zygote {said}")
    assert thread_names(zygote.pid) == said["threads"] == ["fk-zygote"]
    # Loaded here, it is of no use in the forks.
    assert "libnvidia-ml" not in Path(f"/proc/{zygote.pid}/maps").read_text(encoding="utf-8")
    judge = launch(zygote, "judge", {}, settings, level=None, scratch=None, cpu=False)
    try:
        assert run(judge, MANAGEMENT) == [0, True], "NVML fails in a trusted role"
        _say(f"judge: context {run(judge, CONTEXT, 60.0)}")
        run(judge, f"import os; os.chdir({str(settings.cache_dir)!r})")
        _say(f"judge: first kernel {run(judge, KERNEL, 60.0)}, stubs kept {triton_stubs.harvest(settings)}")
    finally:
        judge.kill()
    yield zygote
    zygote.close()


@pytest.mark.parametrize("level", levels.ORDER)
def test_cuda_and_triton_inside(zygote: Zygote, settings: Settings, level: str) -> None:
    why = levels.explain(settings)[level]
    if why:
        pytest.skip(why)
    begin = time.perf_counter()
    child = _start(zygote, settings, level)
    started_s = time.perf_counter() - begin
    try:
        managed = run(child, MANAGEMENT)
        total, context_s = run(child, CONTEXT, 60.0)
        right, first_s = run(child, KERNEL, 60.0)
    finally:
        begin = time.perf_counter()
        child.kill()
        ended_s = time.perf_counter() - begin
    _say(f"{level}: start {started_s:.3f} s, context {context_s} s, first kernel {first_s} s, end {ended_s:.3f} s")
    assert managed == [0, True], "NVML fails in there: torch asks it when memory is short, libraries at import"
    assert total == 512.0**3
    assert right


def _start(zygote: Zygote, settings: Settings, level: str) -> Child:
    scratch = settings.scratch_dir / f"on-gpu-{time.monotonic_ns()}"
    scratch.mkdir(mode=0o700)
    return launch(zygote, "candidate", {}, settings, level=level, scratch=scratch, cpu=False)


def _say(text: str) -> None:
    sys.stdout.write(f"\n{text}\n")
