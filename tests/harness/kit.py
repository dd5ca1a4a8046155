"""Small candidates, the processes and descriptors of a run, and waiting with a limit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fk_core import alive
from fk_core.harness import Harness
from fk_core.leases.devices import cpu_device
from fk_core.leases.flock import FlockLeases
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from fk_core.settings import Limits, Settings

OP, CASE = "softmax", "*/16x4"
"""The smallest case there is: a validation of it takes about a second."""

LIMITS = Limits(
    build_s=60.0, call_s=20.0, first_call_s=20.0, total_s=120.0, memory_bytes=3 << 30, file_bytes=64 << 20, cpu_s=60.0
)
INSTANTS = int(os.environ.get("FK_TEST_INSTANTS", "3"))
"""At how many random instants each kind of process is killed."""

sees_all = pytest.mark.skipif(
    os.geteuid() != 0, reason="trusted processes are undumpable: only root can read which home they work for"
)

_TEMPLATE = """
import ctypes, os, signal, sys, time
import torch
from torch import nn

{top}

class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        {body}
        return torch.softmax(x.float(), dim=self.dim).to(x.dtype)
"""


def candidate(body: str = "pass", *, top: str = "") -> str:
    """A right softmax that does something else first, when it is imported or in every call."""
    return _TEMPLATE.format(top=top, body=body.replace("\n", "\n        "))


GOOD = candidate()
SLOW = candidate("time.sleep(0.02)")
WRONG = candidate("return torch.softmax(x.float() * 1.5, dim=self.dim).to(x.dtype)")
CRASHING = candidate("raise RuntimeError('no more')")


def settings_at(place: Path, **limits: Any) -> Settings:
    merged = Limits(**{**LIMITS.__dict__, **limits})
    return Settings(home=place / "home", lock_dir=place / "locks", device="cpu", limits=merged)


def request(source: str = GOOD, *, fresh: bool = True, cases: str = CASE, **more: Any) -> ValidateRequest:
    return ValidateRequest(op=OP, source=source, cases=cases, fresh=fresh, device="cpu", **more)


def passed(report: ValidateReport) -> bool:
    return report.outcome is Outcome.PASSED and report.correct and not report.evidence


def within(condition: Callable[[], Any], timeout_s: float = 5.0) -> bool:
    """Whether a condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def processes_of(settings: Settings) -> dict[int, str]:
    """Live children of harnesses that use this home: they carry it in their environment or command line."""
    word = str(settings.home)
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environ = process.environ()
            if "FK_RUN" in environ and word in environ.get("HOME", ""):
                found[process.pid] = process.name()
    return found


def pid_of(settings: Settings, role: str) -> int:
    """The process of a role of this home, or 0."""
    return next((pid for pid, name in processes_of(settings).items() if name == f"fk-{role}"), 0)


def kill(pid: int) -> None:
    """kill -9 of one process, dead when this returns."""
    if pid <= 1:
        raise ValueError(f"{pid} is no process of ours")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if not within(lambda: alive.started_ticks(pid) is None):
        raise TimeoutError(f"{pid} does not die")


def none_left(settings: Settings, timeout_s: float = 5.0) -> bool:
    return within(lambda: not processes_of(settings), timeout_s)


def lease_is_free(settings: Settings) -> bool:
    """Whether the device can be had alone, at once."""
    with FlockLeases(settings).acquire(cpu_device(), "exclusive", timeout_s=2.0) as lease:
        return lease.held


def scratch_left(settings: Settings) -> list[str]:
    if not settings.scratch_dir.is_dir():
        return []
    return sorted(str(p.relative_to(settings.scratch_dir)) for p in settings.scratch_dir.glob("*/*") if p.is_dir())


def counts() -> tuple[int, int]:
    """Open descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


class Running:
    """A validation in a thread of its own."""

    def __init__(
        self, harness: Harness, wanted: ValidateRequest, *, queued: Callable[[int], None] = lambda ahead: None
    ) -> None:
        self.cancel = threading.Event()
        self.report: ValidateReport | None = None
        self.error: BaseException | None = None
        self.attempt_id = ""
        self.doing: list[str] = []
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(harness, wanted, queued), daemon=True)
        self._thread.start()

    def _run(self, harness: Harness, wanted: ValidateRequest, queued: Callable[[int], None]) -> None:
        def begun(attempt_id: str) -> None:
            self.attempt_id = attempt_id
            self._begun.set()

        try:
            self.report = harness.validate(
                wanted, lambda doing, share: self.doing.append(doing), self.cancel, begun, queued
            )
        except BaseException as error:  # noqa: BLE001 - shown by the test that looks for a report
            self.error = error

    def result(self, timeout_s: float = 60.0) -> ValidateReport:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"still running after {timeout_s} s: {self.doing[-3:]}"
        assert self.report is not None, self.error
        return self.report

    def began(self, timeout_s: float = 20.0) -> bool:
        return self._begun.wait(timeout_s)

    def alive(self) -> bool:
        return self._thread.is_alive()


def pause(random_: random.Random, longest_s: float) -> float:
    """Sleep until a random instant."""
    seconds = random_.uniform(0.0, longest_s)
    time.sleep(seconds)
    return seconds
