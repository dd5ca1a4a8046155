"""CPU time of other processes, threads and descendants included."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from fk_core.cpu_clock import cpu_seconds

BURN = "import time; end = time.process_time() + {0}\nwhile time.process_time() < end: pass\n"


def run(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "work",
    [
        BURN.format(0.3),
        "import threading, time\ndef f():\n end = time.thread_time() + 0.3\n while time.thread_time() < end: pass\n"
        "t = threading.Thread(target=f); t.start(); t.join()\n",
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {BURN.format(0.3)!r} + 'time.sleep(60)'])\ntime.sleep(1.5)\n",
    ],
    ids=["itself", "a thread", "a child"],
)
def test_work_is_seen_wherever_it_is_done(work: str) -> None:
    ready = "import sys; print('ready', flush=True); sys.stdin.readline()\n"
    end = "print('done', flush=True); sys.stdin.readline()\ntry: p.kill()\nexcept NameError: pass\n"
    process = run(ready + work + end)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    before = cpu_seconds(process.pid)
    process.stdin.write("go\n")
    process.stdin.flush()
    process.stdout.readline()
    spent = cpu_seconds(process.pid) - before
    process.communicate("end\n", timeout=20)
    assert 0.25 < spent < 1.5


def test_a_process_that_waits_spends_nothing() -> None:
    process = run("import sys; print('ready', flush=True); sys.stdin.readline()")
    assert process.stdout is not None
    process.stdout.readline()
    before = cpu_seconds(process.pid)
    time.sleep(0.2)
    assert cpu_seconds(process.pid) - before < 0.02
    process.communicate("end\n", timeout=20)
    assert cpu_seconds(process.pid) == 0.0


def test_no_such_process() -> None:
    assert cpu_seconds(2**22 + 5) == 0.0
