"""What NVML says on a real GPU: devices, load, and who is on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_core.leases.devices import resolve, shared_nvml, survey
from fk_core.leases.foreign import Registry
from fk_core.leases.nvml import Nvml
from fk_core.settings import Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not survey().gpus, reason=f"no GPU: {survey().note}"),
]
CONTEXT = """
import sys, torch
kept = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(Settings(home=tmp_path, lock_dir=tmp_path / "locks"))


@pytest.fixture
def computing() -> Iterator[int]:
    """A process with a CUDA context that does nothing."""
    child = subprocess.Popen([sys.executable, "-c", CONTEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    yield child.pid
    child.communicate(b"", timeout=60)


def test_a_gpu_is_described_and_resolved() -> None:
    gpu = resolve("auto")
    print(gpu)
    assert gpu.kind == "cuda"
    assert gpu.uuid.startswith(("GPU-", "MIG-"))
    assert gpu.memory_bytes > 1 << 30
    assert gpu.driver
    assert float(gpu.compute_capability) >= 7.0
    assert resolve(gpu.uuid) == resolve(str(gpu.index)) == gpu
    load = shared_nvml().load(gpu.uuid)
    print(load)
    assert load.memory_used_bytes is not None


def test_a_context_is_foreign_unless_its_process_is_registered(registry: Registry, computing: int) -> None:
    nvml = Nvml()
    uuid = resolve("cuda").uuid
    listed = nvml.processes(uuid)
    print("listed", listed, "ours is", computing)
    assert listed, "NVML lists no compute process although one has a context"
    foreign = registry.foreign(nvml, uuid)
    assert foreign
    with registry.register(computing):
        ours = registry.foreign(nvml, uuid, {computing})
    assert len(ours) == len(foreign) - 1
    with registry.register():
        # This process may have a context, too, of an earlier test.
        left = registry.foreign(nvml, uuid, {computing, os.getpid()})
    assert len(left) <= len(ours)
    assert not {f.pid for f in left} & {computing, os.getpid()}, "descendants of a harness are ours too"
