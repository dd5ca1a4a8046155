"""What a harness that was killed left behind: scratch directories and, where no pid namespace ended them, processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fk_core import rights
from fk_core.sandbox import trees
from fk_core.sandbox.environ import RUN_MARKER
from fk_core.settings import Settings

_LOCK = ".alive"
_UNNAMED = (".run-", "probe-")
"""Without a lock: a harness's own before it has its final name, and what level probing made up to version 0.1."""
_UNNAMED_S = 60.0
"""One that is older was left by a harness that was killed as it began."""


class Run:
    """This harness's own part of the scratch directory. A lock held for life tells the living from the dead, across
    pid namespaces and reused pids."""

    def __init__(self, settings: Settings) -> None:
        self.path = settings.scratch_dir / f"run-{os.getpid()}-{secrets.token_hex(4)}"
        rights.directory(settings.home)
        rights.directory(settings.scratch_dir)
        # Taken before the directory has its final name, so that no sweeper sees it without its holder.
        hidden = self.path.with_name("." + self.path.name)
        rights.directory(hidden, 0o711)
        self._lock = os.open(hidden / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        hidden.rename(self.path)

    def scratch(self, name: str) -> Path:
        """A new empty directory."""
        path = self.path / f"{name}-{secrets.token_hex(6)}"
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        try:
            trees.remove(self.path)
        finally:
            os.close(self._lock)


def sweep(settings: Settings) -> dict[str, Any]:
    """Remove the scratch of dead harnesses and end their orphans; give what is gone.

    What can't be removed is left and logged, as it must keep nobody from starting.
    """
    removed: list[str] = []
    if settings.scratch_dir.is_dir():
        for path in sorted(settings.scratch_dir.iterdir()):
            if _is_run(path) and _is_dead(path) and trees.remove(path):
                removed.append(path.name)
    return {"scratch": removed, "processes": kill_orphans()}


def marker() -> str:
    """Names this process on this machine: pid namespace, pid, start time, and a number of its own."""
    return f"{_pid_namespace()}.{os.getpid()}.{_start_time(os.getpid())}.{secrets.token_hex(4)}"


def kill_marked(mark: str) -> list[int]:
    """End every process that carries this very mark in its environment."""
    return _kill(lambda found: found == mark)


def kill_orphans() -> list[int]:
    """End processes that a harness of this pid namespace started which lives no more."""
    return _kill(_is_orphan)


def _is_orphan(mark: str) -> bool:
    try:
        namespace, pid, start, _ = mark.split(".")
        return namespace == _pid_namespace() and _start_time(int(pid)) != start
    except ValueError:
        return False


def _kill(wanted: Callable[[str], bool]) -> list[int]:
    killed: list[int] = []
    for _ in range(20):
        found = [pid for pid, mark in _marked() if pid != os.getpid() and wanted(mark)]
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                if pid not in killed:
                    killed.append(pid)
    return killed


def _marked() -> list[tuple[int, str]]:
    prefix = f"{RUN_MARKER}=".encode()
    found: list[tuple[int, str]] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                words = file.read().split(b"\0")
            state = (
                Path(f"/proc/{name}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
            )
        except OSError:
            continue
        if state not in "ZX":
            found += [(int(name), w[len(prefix) :].decode("ascii", "replace")) for w in words if w.startswith(prefix)]
    return found


def _is_run(path: Path) -> bool:
    if path.name.startswith(_UNNAMED):
        with contextlib.suppress(OSError):
            return time.time() - path.stat().st_mtime > _UNNAMED_S
        return False
    return path.name.startswith("run-")


def _is_dead(path: Path) -> bool:
    try:
        fd = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _start_time(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
