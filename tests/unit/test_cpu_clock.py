"""CPU time of what a process started: threads, children, and what has ended or was orphaned."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from fk_core import cpu_clock
from fk_core.cpu_clock import Crowd, cpu_seconds
from fk_core.settings import Timing

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
THREAD = (
    "import threading, time\ndef f():\n end = time.thread_time() + 0.3\n while time.thread_time() < end: pass\n"
    "t = threading.Thread(target=f); t.start(); t.join()\n"
)
CHILD = f"import subprocess, sys, time\np = subprocess.Popen([sys.executable, '-c', {BURN + 'time.sleep(60)'!r}])\n"
ENDED = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n"
END = "print('done', flush=True); sys.stdin.readline()\ntry: p.kill()\nexcept NameError: pass\n"


def run(code: str) -> subprocess.Popen[str]:
    code = "import sys; print('ready', flush=True); sys.stdin.readline()\n" + code
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize(
    "work",
    [BURN, THREAD, CHILD + "time.sleep(1.5)\n", ENDED],
    ids=["itself", "a thread", "a child", "a child that has ended"],
)
def test_work_is_seen_wherever_it_is_done(work: str) -> None:
    process = run(work + END)
    assert process.stdin is not None
    assert process.stdout is not None
    before = cpu_seconds(os.getpid())[0]
    process.stdin.write("go\n")
    process.stdin.flush()
    process.stdout.readline()
    spent = cpu_seconds(os.getpid())[0] - before
    process.communicate("end\n", timeout=20)
    assert 0.25 < spent < 1.5


def test_what_has_ended_still_counts() -> None:
    before = cpu_seconds(os.getpid())[0]
    process = run(BURN)
    process.communicate("go\n", timeout=20)
    assert cpu_seconds(os.getpid())[0] - before > 0.25


def test_a_process_that_waits_spends_nothing_and_one_s_own_work_is_not_counted() -> None:
    process = run("")
    before = cpu_seconds(os.getpid())[0]
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert cpu_seconds(os.getpid())[0] - before < 0.02
    process.communicate("end\n", timeout=20)


def test_no_such_process() -> None:
    assert cpu_seconds(2**22 + 5) == (0.0, frozenset())


def test_who_works_is_told() -> None:
    process = run("")
    assert process.pid in cpu_seconds(os.getpid())[1]
    process.communicate("end\n", timeout=20)
    assert process.pid not in cpu_seconds(os.getpid())[1]


class Kernel:
    """A machine of so many CPUs, on which others and we keep some busy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpus: int) -> None:
        self.cpus, self.now, self.others, self.ours = cpus, 0.0, 0.0, 0.0
        monkeypatch.setattr(cpu_clock.os, "sched_getaffinity", lambda pid: set(range(cpus)))
        monkeypatch.setattr(cpu_clock.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(cpu_clock.time, "process_time", lambda: self.ours / 2)
        monkeypatch.setattr(cpu_clock, "cpu_seconds", lambda pid: (self.ours / 2, frozenset()))
        monkeypatch.setattr(cpu_clock, "_tells_children", lambda: True)
        monkeypatch.setattr(cpu_clock, "_busy_s", lambda cpus: self.others + self.ours)

    def go_on(self, seconds: float, others: float, ours: float) -> None:
        self.now += seconds
        self.others += others * seconds
        self.ours += ours * seconds


@pytest.mark.parametrize(
    ("cpus", "others", "crowded"),
    [
        (1, 0.2, False),
        (1, 0.3, True),
        (2, 1.1, False),
        (2, 1.3, True),
        (4, 3.1, False),
        (4, 3.3, True),
        (64, 63.0, False),
        (64, 63.5, True),
    ],
)
def test_others_crowd_the_cpus_where_they_leave_too_few(
    cpus: int, others: float, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch, cpus)
    crowd = Crowd()
    kernel.go_on(10.0, cpus, 0.0)  # before the first look
    crowd.look()
    assert crowd.cores == 0.0
    kernel.go_on(1.0, others, 1.0)
    crowd.look()
    kernel.go_on(1.0, others, 1.0)
    crowd.look()
    kernel.go_on(10.0, cpus, 0.0)  # after the last one
    assert crowd.cores == pytest.approx(others)
    told = crowd.told(Timing().crowd_share, Timing().crowd_spare)
    assert bool(told) is crowded
    if crowded:
        assert told.startswith(f"other work kept {others:.1f} of its ")


def test_where_the_kernel_lists_no_children_nobody_is_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """One's own work could not be told from that of others."""
    kernel = Kernel(monkeypatch, 2)
    monkeypatch.setattr(cpu_clock, "_tells_children", lambda: False)
    crowd = Crowd()
    for _ in range(3):
        crowd.look()
        kernel.go_on(1.0, 2.0, 0.0)
    assert crowd.cores == 0.0
    assert not crowd.told(Timing().crowd_share, Timing().crowd_spare)


def test_what_the_kernel_says_of_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 3 9999 9999 4 5 6 70 8\ncpu1 1000 0 0 0 0 0 0 0 0 0\nintr 1\n"
    monkeypatch.setattr(cpu_clock.Path, "read_text", lambda self, **how: text)
    assert cpu_clock._busy_s({0}) == pytest.approx(138 * cpu_clock._TICK_S)
    assert cpu_clock._busy_s({0, 1}) == pytest.approx(1138 * cpu_clock._TICK_S)
    assert cpu_clock._busy_s({7}) is None
    monkeypatch.setattr(cpu_clock.Path, "read_text", lambda self, **how: "cpu0 odd\n")
    assert cpu_clock._busy_s({0}) is None
