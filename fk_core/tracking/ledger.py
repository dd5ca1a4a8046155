"""A file of JSON lines to which many processes append, and which a crash or a full disk cannot corrupt.

One event is one line, written under the file's lock and synced before :meth:`Ledger.append` returns. A writer that
dies half-way leaves a torn last line: readers stop at the last newline, and the next writer cuts the rest off. A
write that fails is cut off by the writer itself.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fk_core import filelock

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Position:
    """How far a reader has come, and in which file."""

    inode: int = 0
    offset: int = 0
    last: bytes = b""
    """The line before ``offset``: if it is no longer there, a failed write was cut off after we had read it."""


class Ledger:
    def __init__(self, path: Path, *, lock_s: float = 30.0) -> None:
        self.path = path
        self._lock_s = lock_s

    @contextmanager
    def writing(self) -> Iterator[int]:
        """Holds the lock of the file and yields its descriptor, ending after a complete line.

        Raises:
            filelock.LockBusy: another writer kept the lock for too long.
            OSError: the file cannot be opened or mended.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        created = not self.path.exists()
        held = filelock.Held(os.open(self.path, flags, 0o600))
        try:
            filelock.lock_within(held.fd, self.path, time.monotonic() + self._lock_s)
            if created:
                sync_directory(self.path.parent)
            _cut_torn_line(held.fd)
            yield held.fd
        finally:
            held.close()

    def append(self, fd: int, event: dict[str, Any]) -> None:
        """Writes one event, whole or not at all. ``fd`` comes from :meth:`writing`."""
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
        before = os.fstat(fd).st_size
        try:
            write_all(fd, line)
            os.fdatasync(fd)
        except BaseException:
            os.ftruncate(fd, before)
            raise

    def read_from(self, position: Position) -> tuple[Position, bool, list[dict[str, Any]]]:
        """Events after ``position``: where the next read starts, whether it started over, and the events.

        It starts over when the file is another one than before. Lines that are no JSON object are passed over.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return Position(), position != Position(), []
        try:
            inode = os.fstat(fd).st_ino
            same = inode == position.inode and self._still_ends(fd, position)
            offset = position.offset if same else 0
            chunks = []
            end = offset
            while chunk := os.pread(fd, 1 << 20, end):
                chunks.append(chunk)
                end += len(chunk)
        finally:
            os.close(fd)
        text = b"".join(chunks)
        complete = text[: text.rfind(b"\n") + 1]
        lines = complete.splitlines(keepends=True)
        last = lines[-1] if lines else position.last if same else b""
        events = [e for e in map(_event, lines) if e is not None]
        return Position(inode, offset + len(complete), last), not same and position.offset > 0, events

    def _still_ends(self, fd: int, position: Position) -> bool:
        length = len(position.last)
        return os.pread(fd, length, position.offset - length) == position.last


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: Path) -> None:
    """Makes the names in a directory survive a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def private_directory(path: Path) -> None:
    """Makes a directory that only its owner may enter; a parent that is missing is made in the same way."""
    if path.is_dir():
        return
    private_directory(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    sync_directory(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Writes a file that is either whole, synced and under its name, or not there."""
    private_directory(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _cut_torn_line(fd: int) -> None:
    size = os.fstat(fd).st_size
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(fd, end)
