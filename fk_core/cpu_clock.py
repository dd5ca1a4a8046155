"""CPU time of another process and all it started, to the nanosecond, as the kernel counts it."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

_libc = ctypes.CDLL(None)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads of ``pid`` and of its living descendants; 0 where there is no such process."""
    total = 0.0
    waiting, seen = [pid], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        total += _own(one)
        waiting += _children(one)
    return total


def _own(pid: int) -> float:
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


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
