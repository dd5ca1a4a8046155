"""Who computes on a GPU without asking for a lease.

A harness registers itself; it and all its descendants (judges, candidates) are then ours, also while idle. A
registration is a file under ``lock_dir/pids`` whose lock the harness keeps, so it ends with the harness.

In a container the driver may name processes by ids of the host, which mean nothing inside. Such an id is taken for
one of ours as long as there are processes of ours that the driver's list does not name.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from fk_core import alive, filelock
from fk_core.errors import HarnessError
from fk_core.leases.nvml import GpuProcess, Nvml
from fk_core.settings import Settings

_DEEPEST = 64


@dataclass(frozen=True)
class Foreign:
    """A compute process on a device that belongs to no registered harness."""

    pid: int
    name: str
    memory_bytes: int | None

    def __str__(self) -> str:
        return f"{self.pid} {self.name} {'unknown' if self.memory_bytes is None else self.memory_bytes}"


class Registration:
    """Keeps one process registered until released, or until the process that registered it dies."""

    def __init__(self, held: filelock.Held, path: Path) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        if self._held.mine:
            self._path.unlink(missing_ok=True)
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Registry:
    """Processes that use GPUs under leases."""

    def __init__(self, settings: Settings) -> None:
        self._lock_dir = settings.lock_dir
        self._dir = settings.lock_dir / "pids"

    def register(self, pid: int | None = None) -> Registration:
        """Registers a process (this one by default) and with it all its descendants.

        Raises:
            HarnessError: there is no such process, or the lock directory cannot be written to.
        """
        marked = alive.mark(pid)
        if not alive.is_alive(marked):
            raise HarnessError(f"no process {pid} to register", hint="It has ended already")
        try:
            filelock.shared_directory(self._lock_dir)
            filelock.shared_directory(self._dir)
            return self._write(marked)
        except OSError as e:
            raise HarnessError(
                f"this process cannot be registered in {self._dir}: {e}",
                hint="Set FK_LOCK_DIR to a directory on a local disk that all users of the machine can write to",
            ) from e

    def _write(self, marked: str) -> Registration:
        draft = self._dir / f".{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        held = filelock.Held(os.open(draft, flags, 0o600))
        try:
            os.fchmod(held.fd, 0o644)
            filelock.lock_within(held.fd, draft, time.monotonic() + 1.0)
            os.write(held.fd, marked.encode("ascii"))
            path = self._dir / f"p-{secrets.token_hex(8)}"
            os.rename(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            held.close()
            raise
        return Registration(held, path)

    def pids(self) -> set[int]:
        """Registered processes that live."""
        names = os.listdir(self._dir) if self._dir.is_dir() else []
        marks = [self._read(self._dir / name) for name in names if name.startswith("p-")]
        return {alive.pid_of(mark) for mark in marks if mark and alive.is_alive(mark)}

    def is_ours(self, pid: int, registered: set[int]) -> bool:
        """Whether a registered process is this one or an ancestor of it."""
        current: int | None = pid
        for _ in range(_DEEPEST):
            if current is None or current <= 0:
                return False
            if current in registered:
                return True
            current = alive.parent_of(current)
        return False

    def foreign(self, nvml: Nvml, uuid: str, using: set[int] | None = None) -> list[Foreign]:
        """Compute processes on the device that are not ours.

        ``using`` are process ids of ours that are known to have a context on the device (judge, candidate): as many
        unknown ids as there are of these without an entry in the driver's list are taken for them.
        """
        return self.among(nvml.processes(uuid), using)

    def among(self, processes: list[GpuProcess], using: set[int] | None = None) -> list[Foreign]:
        registered = self.pids()
        listed = {p.pid for p in processes}
        unlisted = len({pid for pid in (using or set()) if pid not in listed})
        found: list[Foreign] = []
        for process in sorted(processes, key=lambda p: p.pid):
            if self.is_ours(process.pid, registered):
                continue
            name = _name_of(process.pid)
            if name is None and unlisted > 0:
                unlisted -= 1
                continue
            found.append(Foreign(process.pid, name or "unknown", process.memory_bytes))
        return found

    def _read(self, path: Path) -> str:
        fd = filelock.open_if_there(path)
        if fd is None:
            return ""
        try:
            if filelock.is_free(fd):
                try:
                    path.unlink(missing_ok=True)
                except PermissionError:
                    # Another user's: it counts for nothing, and its owner will remove it.
                    pass
                return ""
            return os.pread(fd, 256, 0).decode("ascii", "replace")
        finally:
            os.close(fd)


def _name_of(pid: int) -> str | None:
    """Short name of the process; None where its id means nothing here."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
