"""CPU time of what another process started, as the kernel counts it."""

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
