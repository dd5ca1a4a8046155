"""Whether a process that was written down is still the same process: its id alone may have been given out again."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def boot_id() -> str:
    """Changes with every start of the machine; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def started_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None if there is none, or only a zombie of it."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def parent_of(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[1])


def mark(pid: int | None = None) -> str:
    """Names a process for good: id, start and boot."""
    pid = os.getpid() if pid is None else pid
    return f"{pid}:{started_ticks(pid)}:{boot_id()}"


def is_alive(marked: str) -> bool:
    """Whether the process that :func:`mark` named still runs."""
    pid, _, rest = marked.partition(":")
    started, _, boot = rest.partition(":")
    return pid.isdigit() and started.isdigit() and boot == boot_id() and started_ticks(int(pid)) == int(started)


def pid_of(marked: str) -> int:
    pid = marked.partition(":")[0]
    return int(pid) if pid.isdigit() else 0


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` after the name, which may itself hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
