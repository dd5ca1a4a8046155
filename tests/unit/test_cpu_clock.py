"""CPU time of what a process started: threads, children, and what has ended or was orphaned."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from fk_core.cpu_clock import cpu_seconds

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
