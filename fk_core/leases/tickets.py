"""The queue of one device: a directory of tickets.

Whoever holds or waits owns one file, ``t-NUMBER-RANDOM``, and keeps its flock. Numbers rise, and are given out under
the directory's mutex. A ticket counts while its lock is held; the kernel frees the lock when the owner dies, so no
process id is ever asked whether it lives. Who holds the device follows from the order alone:

* an exclusive ticket is granted when no live ticket stands before it;
* a shared ticket is granted when all live tickets before it are shared.

There is no other state, hence none that a ``kill -9`` could leave half changed. A new ticket is written and locked
under a name that readers ignore, then renamed. A downgrade changes one byte of the ticket. A release unlinks it.

Tickets are readable by every user and writable by their owner; in the sticky directory only the owner, or root, can
remove one. A dead ticket of another user is therefore skipped rather than removed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from fk_core import filelock
from fk_core.leases.base import Mode, Queue
from fk_core.records.device import Holder

_NAME = re.compile(r"t-(\d{16})-[0-9a-f]{8}")
_LETTER: dict[Mode, bytes] = {"shared": b"s", "exclusive": b"x"}
_TIME_WIDTH = 20
_QUEUED_AT, _GRANTED_AT = 2, 2 + _TIME_WIDTH + 1
_HEAD = _GRANTED_AT + _TIME_WIDTH + 1
_LARGEST = 4096


@dataclass(frozen=True)
class Seen:
    """A live ticket as another process reads it."""

    number: int
    name: str
    mode: Mode
    pid: int
    purpose: str
    queued: float
    granted: float
    """``time.monotonic()``, which all processes of one machine share; 0 while waiting."""
    hold_s: float

    def holder(self, now: float) -> Holder:
        since_s = max(0.0, now - (self.granted or self.queued))
        late = f" (past its limit of {self.hold_s:g} s)" if self.granted and since_s > self.hold_s > 0 else ""
        return Holder(pid=self.pid, mode=self.mode, purpose=self.purpose + late, since_s=round(since_s, 3))


def compatible(mode: Mode, earlier: Mode) -> bool:
    return mode == "shared" == earlier


def first_blocker(number: int, mode: Mode, queue: list[Seen]) -> Seen | None:
    """The oldest live ticket that keeps this one waiting; None if it is granted."""
    return next((t for t in queue if t.number < number and not compatible(mode, t.mode)), None)


def as_queue(tickets: list[Seen]) -> Queue:
    now = time.monotonic()
    granted = {t.number for t in tickets if first_blocker(t.number, t.mode, tickets) is None}
    return Queue(
        holders=[t.holder(now) for t in tickets if t.number in granted],
        waiting=[t.holder(now) for t in tickets if t.number not in granted],
    )


def place(number: int, tickets: list[Seen]) -> tuple[list[Holder], int]:
    """Who holds now, and the place of a waiting ticket among those that wait: 1 is next."""
    granted = {t.number for t in tickets if first_blocker(t.number, t.mode, tickets) is None}
    ahead = sum(1 for t in tickets if t.number < number and t.number not in granted)
    return as_queue(tickets).holders, ahead + 1


class Ticket:
    """Our own place in the queue."""

    def __init__(self, held: filelock.Held, path: Path, number: int, mode: Mode) -> None:
        self._held = held
        self._path = path
        self.number = number
        self.mode: Mode = mode

    def note_granted(self) -> None:
        os.pwrite(self._held.fd, _time_field(time.monotonic()), _GRANTED_AT)

    def downgrade(self) -> None:
        os.pwrite(self._held.fd, _LETTER["shared"], 0)
        self.mode = "shared"

    def still_there(self) -> bool:
        """False if someone removed the file by hand: then the order no longer protects us."""
        return self._held.mine and filelock.still_named(self._held.fd, self._path)

    def drop(self) -> None:
        """Gives the place up. In a forked child nothing happens: the place is its parent's."""
        try:
            if self.still_there():
                os.unlink(self._path)
        finally:
            self._held.close()


class TicketDirectory:
    """All tickets of one device."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def draw(self, mode: Mode, *, purpose: str, hold_s: float, timeout_s: float) -> Ticket:
        """Puts a new ticket at the end of the queue.

        Raises:
            filelock.LockBusy: the mutex did not come free in ``timeout_s``.
        """
        filelock.shared_directory(self.path)
        draft = self.path / f".{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        held = filelock.Held(os.open(draft, flags, 0o600))
        try:
            os.fchmod(held.fd, 0o644)
            if not filelock.try_lock(held.fd):
                raise AssertionError("a file that we have just made is locked by someone else")
            about = {"pid": os.getpid(), "purpose": purpose[:200], "hold_s": hold_s}
            head = _LETTER[mode] + b" " + _time_field(time.monotonic()) + b" " + _time_field(0.0) + b"\n"
            os.write(held.fd, head + json.dumps(about).encode() + b"\n")
            with filelock.mutex(self.path / "mutex", timeout_s):
                number = 1 + max((n for n, _ in self._names()), default=0)
                name = self.path / f"t-{number:016d}-{secrets.token_hex(4)}"
                os.rename(draft, name)
        except BaseException:
            _unlink(draft)
            held.close()
            raise
        return Ticket(held, name, number, mode)

    def live(self) -> list[Seen]:
        """Live tickets, oldest first; removes dead ones where we may.

        No mutex is needed: a ticket that appears meanwhile has a higher number than any that we judge by.
        """
        seen = []
        for number, name in sorted(self._names()):
            ticket = self._look(number, name)
            if ticket is not None:
                seen.append(ticket)
        return seen

    def sweep_drafts(self, older_than_s: float = 60.0) -> None:
        """Removes drafts that their makers' death left behind."""
        for entry in _entries(self.path):
            if entry.startswith(".") and _age_s(self.path / entry) > older_than_s:
                self._look(0, entry)

    def _names(self) -> list[tuple[int, str]]:
        matches = (_NAME.fullmatch(name) for name in _entries(self.path))
        return [(int(m[1]), m[0]) for m in matches if m]

    def _look(self, number: int, name: str) -> Seen | None:
        fd = filelock.open_if_there(self.path / name)
        if fd is None:
            return None
        try:
            if filelock.is_free(fd):
                _unlink(self.path / name)
                return None
            return _parse(number, name, os.pread(fd, _LARGEST, 0))
        finally:
            os.close(fd)

    def watch(self, ticket: Seen) -> Watch | None:
        """Opens the ticket that we wait for; None if it is gone already."""
        fd = filelock.open_if_there(self.path / ticket.name)
        if fd is None:
            return None
        return Watch(filelock.Held(fd), ticket.mode)


class Watch:
    """Asks cheaply, again and again, whether one ticket still stands in the way."""

    def __init__(self, held: filelock.Held, mode: Mode) -> None:
        self._held = held
        self._letter = _LETTER[mode]

    def changed(self) -> bool:
        return os.pread(self._held.fd, 1, 0) != self._letter or filelock.is_free(self._held.fd)

    def close(self) -> None:
        self._held.close()


def _parse(number: int, name: str, text: bytes) -> Seen:
    """What cannot be read counts as exclusive: better to wait than to disturb."""
    mode: Mode = "shared" if text[:1] == b"s" else "exclusive"
    try:
        about = json.loads(text[_HEAD:])
        pid, purpose, hold_s = int(about["pid"]), str(about["purpose"]), float(about["hold_s"])
        queued = float(text[_QUEUED_AT : _QUEUED_AT + _TIME_WIDTH])
        granted = float(text[_GRANTED_AT : _GRANTED_AT + _TIME_WIDTH])
    except (ValueError, KeyError, TypeError):
        pid, purpose, hold_s, queued, granted = 0, "unreadable ticket", 0.0, time.monotonic(), 0.0
    return Seen(number, name, mode, pid, purpose, queued, granted, hold_s)


def _time_field(seconds: float) -> bytes:
    return f"{seconds:0{_TIME_WIDTH}.6f}".encode()


def _entries(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def _age_s(path: Path) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except (FileNotFoundError, PermissionError):
        pass
