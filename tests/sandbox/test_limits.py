"""Limits, and how a role ended: each is really run into."""

from __future__ import annotations

import os

import pytest

from fk_core.sandbox.launch import ChildGone
from tests.sandbox.kit import Start, gone_within, run


def _dies(child: object, code: str, timeout_s: float = 30.0) -> ChildGone:
    with pytest.raises(ChildGone) as caught:
        child.ask({"code": code}, timeout_s)  # type: ignore[attr-defined]
    return caught.value


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os; os._exit(3)", "exit 3"),
        ("raise SystemExit(7)", "exit 7"),
        ("raise KeyboardInterrupt", "exit 1"),
        ("import ctypes; ctypes.string_at(0)", "signal 11 (SIGSEGV)"),
        ("import os; os.abort()", "signal 6 (SIGABRT)"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 (SIGKILL)"),
    ],
)
def test_exit_statuses(start: Start, level: str, code: str, status: str) -> None:
    gone = _dies(start(level), code)
    assert gone.exit_status == status
    assert gone.over_limit is None


def test_the_log_holds_the_traceback(start: Start, level: str) -> None:
    gone = _dies(
        start(level),
        "import sys\nsys.stderr.write('café \\udcff\\n')\n"
        "sys.stdout.buffer.write(b'\\xff\\xfe')\nraise BaseException('farewell')",
    )
    assert "farewell" in gone.log_tail
    assert "café \\udcff" in gone.log_tail
    assert "\ufffd" in gone.log_tail


def test_memory_on_a_cpu_is_a_memory_error(start: Start, level: str) -> None:
    child = start(level, limits={"memory_bytes": 256 << 20})
    assert child.ask({"code": "x = bytearray(1 << 30)"}, 30.0).body["error"].startswith("MemoryError")
    assert run(child, "out = len(bytearray(64 << 20))") == 64 << 20


def test_resident_memory_is_watched(start: Start, level: str) -> None:
    child = start(level, limits={"memory_bytes": 128 << 20}, cpu=False)
    gone = _dies(child, "x = bytearray(b'x' * (300 << 20))\nwhile True: import time; time.sleep(1)")
    assert gone.over_limit == "memory"
    assert gone.exit_status == "killed by the harness"


def test_memory_of_all_processes_together(start: Start, level: str) -> None:
    child = start(level, limits={"memory_bytes": 160 << 20}, cpu=False)
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(b'x' * (60 << 20))
        time.sleep(60)
time.sleep(60)
"""
    assert _dies(child, code).over_limit == "memory"


SHARED = {
    "open": """
import os, time
held = []
for _ in range(6):
    held.append(os.memfd_create("x"))
    for _ in range(50):
        os.write(held[-1], bytes(1 << 20))
time.sleep(60)
""",
    "spread over processes": """
import os, time
for _ in range(6):
    if os.fork() == 0:
        fd = os.memfd_create("x")
        for _ in range(50):
            os.write(fd, bytes(1 << 20))
        time.sleep(60)
time.sleep(60)
""",
    "mapped and closed": """
import mmap, os, time
fd = os.memfd_create("x")
os.ftruncate(fd, 300 << 20)
held = mmap.mmap(fd, 300 << 20, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
os.close(fd)
time.sleep(60)
""",
    "anonymous": """
import mmap, time
held = mmap.mmap(-1, 300 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
time.sleep(60)
""",
}


@pytest.mark.parametrize("how", SHARED)
def test_shared_memory_is_memory(start: Start, level: str, how: str) -> None:
    child = start(level, limits={"memory_bytes": 160 << 20}, cpu=False)
    assert _dies(child, SHARED[how]).over_limit == "memory"


def test_an_arena_is_within_the_limit(start: Start, level: str) -> None:
    """Mapped and open, in a process that has forked: counted for the whole tree, not for each process of it."""
    arena = os.memfd_create("fk-arena")
    os.ftruncate(arena, 40 << 20)
    child = start(level, limits={"memory_bytes": 160 << 20}, cpu=False)
    code = """
import mmap, os, time
held = mmap.mmap(fds[0], 40 << 20, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
pids = []
for _ in range(4):
    pids.append(os.fork())
    if pids[-1] == 0:
        held[:] = bytes(40 << 20)
        time.sleep(1.5)
        os._exit(0)
out = [os.waitpid(pid, 0)[1] for pid in pids]
"""
    assert child.ask({"code": code}, 30.0, (arena,)).body == {"out": [0] * 4}
    os.close(arena)


def test_cpu_time(start: Start, level: str) -> None:
    gone = _dies(start(level, limits={"cpu_s": 1.0}), "while True: pass")
    assert gone.over_limit == "cpu time"


def test_cpu_time_with_the_signal_ignored(start: Start, level: str) -> None:
    code = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    gone = _dies(start(level, limits={"cpu_s": 1.0}), code)
    assert gone.over_limit == "cpu time"


def test_file_size(start: Start, level: str) -> None:
    child = start(level, limits={"file_bytes": 1 << 20})
    error = child.ask({"code": "open('big', 'wb').write(b'x' * (2 << 20))"}, 30.0).body["error"]
    assert "File too large" in error
    assert (child.scratch / "big").stat().st_size <= 1 << 20  # type: ignore[attr-defined]


def test_output_is_cut_and_a_flood_ends_it(start: Start, level: str) -> None:
    child = start(level, limits={"log_bytes": 4096})
    run(child, "print('first'); print('x' * 20000); print('last')")
    assert gone_within(lambda: not child.log_tail().rstrip().endswith("last"))  # the answer may overtake the output
    text = child.log_tail()
    assert text.startswith("first")
    assert text.rstrip().endswith("last")
    assert "bytes left out" in text
    assert len(text) < 4096 + 100
    gone = _dies(child, "while True: print('x' * 1000)")
    assert gone.over_limit == "output"
    assert len(child.log_tail()) < 4096 + 100


FORKS = """
import os, time
out = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        out += 1
    time.sleep(60)
except BlockingIOError:
    pass
"""


def _counted_by_the_kernel(child: object, level: str) -> bool:
    """Root is held to no number of processes; its tree is counted instead."""
    return level == "namespaces" or os.geteuid() != 0 or child.uid is not None  # type: ignore[attr-defined]


def test_a_fork_bomb_is_limited_and_ends(start: Start, level: str) -> None:
    child = start(level, limits={"processes": 30})
    if _counted_by_the_kernel(child, level):
        assert 5 <= run(child, FORKS) <= 32
        child.kill()
    else:
        gone = _dies(child, FORKS)
        assert gone.over_limit == "processes"
    assert child.wait(5.0)
    assert child.usage["all_gone"]


def test_a_growing_fork_bomb_is_killed(start: Start, level: str) -> None:
    child = start(level, limits={"processes": 40})
    loop = "while True" if _counted_by_the_kernel(child, level) else "for _ in range(7)"
    code = f"""
import os, time
if os.fork() == 0:
    {loop}:
        try:
            os.fork()
        except OSError:
            pass
    os.wait()
time.sleep(0.3)
"""
    child.channel.post({"code": code})
    child.wait(1.0)
    child.kill()
    assert not child.alive()
    assert child.usage["all_gone"]


def test_descriptors(start: Start, level: str) -> None:
    child = start(level, limits={"open_files": 64})
    assert (
        "Too many open files" in child.ask({"code": "x = [open('/dev/null') for _ in range(100)]"}, 10.0).body["error"]
    )


def test_no_core_files(start: Start, level: str) -> None:
    assert run(start(level), "import resource; out = resource.getrlimit(resource.RLIMIT_CORE)") == [0, 0]


def test_limits_cannot_be_raised(start: Start, strong_level: str) -> None:
    child = start(strong_level, limits={"processes": 30})
    code = "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (5000, 5000))"
    assert "Error" in child.ask({"code": code}, 10.0).body["error"]
