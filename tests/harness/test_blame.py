"""Second thoughts on a failed candidate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fk_core import blame
from fk_core.blame import CandidateLost, TryAgain, filled, reconsider
from fk_core.child import processes
from fk_core.errors import DeviceBroken, HarnessError
from fk_core.fault import CandidateFault
from fk_core.leases.nvml import GpuProcess
from fk_core.records.device import Device
from fk_core.records.report import Outcome


class FakeChild:
    def __init__(self, exit_status: str = "running", over_limit: str | None = None) -> None:
        self.exit_status, self.over_limit = exit_status, over_limit

    def alive(self) -> bool:
        return self.exit_status == "running"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    return place


def thoughts(fault: CandidateFault, child: FakeChild, scratch: Path, **more: Any) -> Exception:
    given: dict[str, Any] = {"last": False, "shared": False, **more}
    return reconsider(fault, child, scratch, scratch.parent, **given)  # type: ignore[arg-type]


def fault(outcome: Outcome = Outcome.CRASHED, reason: str = "it ended") -> CandidateFault:
    return CandidateFault(outcome, reason)


@pytest.mark.parametrize("status", ["running", "exit 0", "exit 1", "signal 11 (SIGSEGV)", "signal 6 (SIGABRT)"])
def test_its_own_end(scratch: Path, status: str) -> None:
    its = fault()
    assert thoughts(its, FakeChild(status), scratch) is its


@pytest.mark.parametrize("status", ["unknown", "killed by the harness"])
def test_an_end_that_nobody_wanted(scratch: Path, status: str) -> None:
    assert isinstance(thoughts(fault(), FakeChild(status), scratch), CandidateLost)
    assert isinstance(thoughts(fault(), FakeChild(status), scratch, last=True), CandidateLost)


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.TAMPERED, Outcome.WRONG_VALUES, Outcome.MUTATED])
def test_what_the_harness_killed_it_for(scratch: Path, outcome: Outcome) -> None:
    its = fault(outcome)
    assert thoughts(its, FakeChild("killed by the harness"), scratch) is its


def test_over_a_limit(scratch: Path) -> None:
    its = fault(Outcome.OVER_LIMIT)
    assert thoughts(its, FakeChild("killed by the harness", "memory"), scratch) is its


def test_sigkill_once_and_twice(scratch: Path) -> None:
    its, child = fault(), FakeChild("signal 9 (SIGKILL)")
    assert isinstance(thoughts(its, child, scratch), TryAgain)
    assert thoughts(its, child, scratch, last=True) is its


@pytest.mark.parametrize(
    "reason", ["out of memory: CUDA out of memory. Tried", "RuntimeError: CUDA error: unspecified"]
)
def test_a_gpu_that_others_used(scratch: Path, reason: str) -> None:
    its = fault(Outcome.CRASHED, reason)
    first = thoughts(its, FakeChild(), scratch, shared=True)
    assert isinstance(first, TryAgain)
    assert first.alone
    assert thoughts(its, FakeChild(), scratch, shared=True, last=True) is its
    assert thoughts(its, FakeChild(), scratch) is its


def test_a_scratch_that_vanished(scratch: Path) -> None:
    shutil.rmtree(scratch)
    assert isinstance(thoughts(fault(Outcome.BUILD_FAILED), FakeChild(), scratch), HarnessError)


def test_a_full_disk(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By others it is the harness's fault, by the candidate's own files its own."""
    monkeypatch.setattr(blame, "_disk_full", lambda home: True)
    its = fault(Outcome.BUILD_FAILED)
    assert isinstance(thoughts(its, FakeChild(), scratch), HarnessError)
    monkeypatch.setattr(blame, "_OWN_BYTES", 1 << 16)
    (scratch / "much").write_bytes(b"x" * (1 << 17))
    assert thoughts(its, FakeChild(), scratch) is its


@pytest.mark.parametrize(
    ("held", "its"),
    [
        ({10: 90, 30: 20}, True),
        ({11: 60}, True),  # a process that the candidate started
        ({10: 30, 11: 30}, True),
        ({10: 40, 30: 90}, False),
        ({30: 120}, False),
        ({}, False),
    ],
)
def test_who_filled_the_gpu(monkeypatch: pytest.MonkeyPatch, held: dict[int, int], its: bool) -> None:
    monkeypatch.setattr(processes, "descendants", lambda pid: [11])

    class Nvml:
        def processes(self, uuid: str) -> list[GpuProcess]:
            return [GpuProcess(pid, share * 1 << 30) for pid, share in held.items()]

    child = FakeChild()
    child.pid = 10  # type: ignore[attr-defined]
    device = Device(kind="cuda", uuid="GPU-0", name="any", memory_bytes=100 << 30)
    found = filled(child, device=device, nvml=Nvml())  # type: ignore[arg-type]
    assert (found is not None) is its
    if found is not None:
        assert found.outcome is Outcome.OVER_LIMIT
        assert "of the 100.0 GiB" in found.reason


def test_a_full_gpu_that_others_used_is_tried_alone(scratch: Path) -> None:
    its = fault(Outcome.OVER_LIMIT, "out of memory: the candidate holds 51.0 of the 100.0 GiB of the GPU")
    doubt = thoughts(its, FakeChild(), scratch, shared=True)
    assert isinstance(doubt, TryAgain)
    assert doubt.alone
    assert thoughts(its, FakeChild(), scratch) is its


def test_who_filled_a_gpu_that_can_not_be_asked() -> None:
    class Nvml:
        def processes(self, uuid: str) -> list[GpuProcess]:
            raise DeviceBroken("it hangs")

    device = Device(kind="cuda", uuid="GPU-0", name="any", memory_bytes=100 << 30)
    assert filled(FakeChild(), device=device, nvml=Nvml()) is None  # type: ignore[arg-type]
