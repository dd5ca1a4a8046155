"""CPU time of what another process started, and of all that is none of ours, as the kernel counts it."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

_libc = ctypes.CDLL(None)


_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(keeper: int) -> tuple[float, frozenset[int]]:
    """CPU seconds of all descendants of ``keeper``, those included that have ended; not of itself. And who they are.

    ``keeper`` takes in what is orphaned below it. To the nanosecond for those that live, in clock ticks for the others;
    but a process whose end its parent ignores leaves no trace but that it is gone.
    """
    total = _ended(keeper)
    waiting, seen = _children(keeper), {keeper}
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        total += _own(one) + _ended(one)
        waiting += _children(one)
    return total, frozenset(seen - {keeper})


class Crowd:
    """How many of the CPUs that this process may use others keep busy: processes that are neither this one nor below
    it, and other guests of the same host (steal).
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None

    def look(self) -> None:
        """What is counted begins with the first look and ends with the last one. Nothing is, where the kernel does not
        say what is busy or who is below this process: its own work would count as that of others."""
        all_s = _busy_s(os.sched_getaffinity(0))
        if all_s is None or not _tells_children():
            return
        others_s = all_s - time.process_time() - cpu_seconds(os.getpid())[0]
        self._last = (time.monotonic(), others_s)
        self._first = self._first or self._last

    @property
    def cores(self) -> float:
        """Their mean number; 0 where the kernel does not say."""
        if self._first is None or self._last is None or self._last[0] - self._first[0] < _LEAST_S:
            return 0.0
        return max(0.0, (self._last[1] - self._first[1]) / (self._last[0] - self._first[0]))

    def told(self, most_share: float, spare: float) -> str:
        """In words, where they kept more than ``most_share`` of the CPUs busy and left fewer than ``spare``."""
        there = len(os.sched_getaffinity(0))
        if self.cores <= max(most_share * there, there - spare):
            return ""
        of = "its only CPU" if there == 1 else f"its {there} CPUs"
        return f"other work kept {self.cores:.1f} of {of} busy while cases were timed"


_LEAST_S = 0.2
"""The kernel counts in ticks of 10 ms."""


def _busy_s(cpus: set[int]) -> float | None:
    """Seconds for which these CPUs were not idle, those included that a hypervisor gave to others."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
        rows = [line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
        # user, nice, system, irq, softirq, steal; neither idle nor iowait, and guests are in user already
        busy = [sum(int(row[1 + n]) for n in (0, 1, 2, 5, 6, 7)) for row in rows if int(row[0][3:]) in cpus]
    except (OSError, ValueError, IndexError):
        return None
    return sum(busy) * _TICK_S if busy else None


def _own(pid: int) -> float:
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def _ended(pid: int) -> float:
    """Of the children of ``pid`` that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) * _TICK_S


def _tells_children() -> bool:
    """Whether this kernel lists children; some are built without that."""
    pid = os.getpid()
    return os.path.exists(f"/proc/{pid}/task/{pid}/children")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        for task in tasks:
            text = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii")
            found += [int(word) for word in text.split()]
    except OSError:
        return found
    return found
