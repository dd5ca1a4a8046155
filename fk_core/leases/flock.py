"""Leases among all processes of one host, kept by the kernel's file locks (the default backend).

One directory of tickets per device UUID under ``settings.lock_dir``; see ``tickets`` for the protocol. Not for
network file systems, whose locks may be lost.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from fk_core import filelock
from fk_core.errors import Cancelled, HarnessError, LeaseTimeout
from fk_core.leases.base import Mode, OnWait, Queue
from fk_core.leases.tickets import Seen, Ticket, TicketDirectory, as_queue, first_blocker, place
from fk_core.records.device import Device, Holder
from fk_core.settings import Settings

_QUICK_POLL_S, _SLOW_POLL_S, _QUICK_FOR_S = 0.002, 0.010, 0.25
_RESCAN_S = 0.5
_SWEEP_S = 300.0


class FlockLeases:
    """The lease backend of one host."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._swept: dict[str, float] = {}

    def acquire(
        self,
        device: Device,
        mode: Mode = "shared",
        *,
        purpose: str = "",
        timeout_s: float | None = None,
        cancel: threading.Event | None = None,
        on_wait: OnWait | None = None,
        hold_s: float | None = None,
        on_overdue: Callable[[], None] | None = None,
    ) -> FlockLease:
        hold_s = self._settings.leasing.hold_s if hold_s is None else hold_s
        lease = FlockLease(self, device, purpose, hold_s, on_overdue)
        lease._take(mode, timeout_s, cancel, on_wait)
        return lease

    def queue(self, uuid: str) -> Queue:
        return as_queue(self.directory(uuid).live())

    def status(self) -> dict[str, Queue]:
        root = self._devices_dir()
        names = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        return {name: self.queue(name) for name in names}

    def directory(self, uuid: str) -> TicketDirectory:
        return TicketDirectory(self._devices_dir() / _file_name(uuid))

    def _devices_dir(self) -> Path:
        return self._settings.lock_dir / "devices"

    def draw(self, uuid: str, mode: Mode, purpose: str, hold_s: float, timeout_s: float) -> Ticket:
        try:
            filelock.shared_directory(self._settings.lock_dir)
            filelock.shared_directory(self._devices_dir())
            directory = self.directory(uuid)
            ticket = directory.draw(mode, purpose=purpose, hold_s=hold_s, timeout_s=timeout_s)
            if time.monotonic() - self._swept.get(uuid, float("-inf")) > _SWEEP_S:
                self._swept[uuid] = time.monotonic()
                directory.sweep_drafts()
        except filelock.LockBusy as e:
            raise LeaseTimeout(
                f"could not queue for {uuid}: {e}", hint="A process that holds it is stopped or hangs; end it"
            ) from e
        except OSError as e:
            raise HarnessError(
                f"leases cannot be kept in {self._settings.lock_dir}: {e}",
                hint="Set FK_LOCK_DIR to a directory on a local disk that all users of the machine can write to",
            ) from e
        return ticket

    def queue_limit_s(self, timeout_s: float | None) -> float:
        return self._settings.leasing.queue_s if timeout_s is None else timeout_s


class FlockLease:
    """A lease that lives as long as its ticket's lock."""

    def __init__(
        self,
        leases: FlockLeases,
        device: Device,
        purpose: str,
        hold_s: float,
        on_overdue: Callable[[], None] | None,
    ) -> None:
        self._leases = leases
        self._device = device
        self._purpose = purpose
        self._hold_s = hold_s
        self._on_overdue = on_overdue
        self._alarm: threading.Timer | None = None
        self._lock = threading.RLock()
        self._ticket: Ticket | None = None
        self._granted = 0.0
        self._mode_since = 0.0
        self._seconds: dict[Mode, float] = {"shared": 0.0, "exclusive": 0.0}
        self._waited_s = 0.0
        self._waiting_since: float | None = None
        self._last_mode: Mode = "shared"

    @property
    def device(self) -> Device:
        return self._device

    @property
    def mode(self) -> Mode:
        ticket = self._ticket
        return self._last_mode if ticket is None else ticket.mode

    @property
    def held(self) -> bool:
        ticket = self._ticket
        return ticket is not None and ticket.still_there()

    @property
    def held_s(self) -> float:
        with self._lock:
            return sum(self._seconds.values()) + self._running_s()

    @property
    def exclusive_s(self) -> float:
        with self._lock:
            return self._seconds["exclusive"] + (self._running_s() if self.mode == "exclusive" else 0.0)

    @property
    def waited_s(self) -> float:
        since, waited_s = self._waiting_since, self._waited_s
        return waited_s if since is None else waited_s + time.monotonic() - since

    @property
    def overdue(self) -> bool:
        return self._ticket is not None and time.monotonic() - self._granted > self._hold_s

    def upgrade(
        self,
        mode: Literal["exclusive"] = "exclusive",
        *,
        timeout_s: float | None = None,
        cancel: threading.Event | None = None,
        on_wait: OnWait | None = None,
    ) -> None:
        if self._ticket is None:
            raise HarnessError("a lease that was released cannot be upgraded", hint="Acquire a new one")
        if self._ticket.mode == "exclusive":
            return
        self._take(mode, timeout_s, cancel, on_wait)

    def downgrade(self) -> None:
        with self._lock:
            if self._ticket is None:
                raise HarnessError("a lease that was released cannot be downgraded", hint="Acquire a new one")
            if self._ticket.mode == "exclusive":
                self._account()
                self._ticket.downgrade()

    def release(self) -> None:
        with self._lock:
            ticket = self._ticket
            if ticket is None:
                return
            self._account()
            self._last_mode, self._ticket = ticket.mode, None
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            ticket.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(
        self, mode: Mode, timeout_s: float | None, cancel: threading.Event | None, on_wait: OnWait | None
    ) -> None:
        """Draws a ticket, gives the old one up only then (so nobody slips in between), and waits."""
        began = self._waiting_since = time.monotonic()
        limit_s = self._leases.queue_limit_s(timeout_s)
        try:
            ticket = self._leases.draw(self._device.uuid, mode, self._purpose, self._hold_s, _mutex_limit_s(limit_s))
        except BaseException:
            self._waiting_since = None
            self.release()
            raise
        try:
            self.release()
            self._wait(ticket, mode, began, limit_s, cancel, on_wait)
            ticket.note_granted()
        except BaseException:
            ticket.drop()
            raise
        finally:
            # In this order: whoever reads in between counts it twice, and not for a moment not at all.
            self._waited_s += time.monotonic() - began
            self._waiting_since = None
        with self._lock:
            self._ticket = ticket
            self._granted = self._mode_since = time.monotonic()
            if self._on_overdue is not None:
                self._alarm = threading.Timer(self._hold_s, self._on_overdue)
                self._alarm.daemon = True
                self._alarm.start()

    def _wait(
        self,
        ticket: Ticket,
        mode: Mode,
        began: float,
        limit_s: float,
        cancel: threading.Event | None,
        on_wait: OnWait | None,
    ) -> None:
        directory = self._leases.directory(self._device.uuid)
        told: tuple[int, list[int]] | None = None
        while True:
            queue = directory.live()
            blocker = first_blocker(ticket.number, mode, queue)
            if blocker is None:
                if not ticket.still_there():
                    raise HarnessError(
                        f"the ticket for {self._device.uuid} was removed from {directory.path}",
                        hint="Something cleans the lock directory while leases are in use; exempt it",
                    )
                return
            holders, position = place(ticket.number, queue)
            now_told = (position, [h.pid for h in holders])
            if on_wait is not None and told != now_told:
                told = now_told
                on_wait(position, holders)
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"cancelled while waiting for {self._device.uuid}")
            if time.monotonic() - began >= limit_s:
                raise _timed_out(self._device, mode, limit_s, holders, position)
            self._watch(directory, blocker, began, limit_s, cancel)

    def _watch(
        self,
        directory: TicketDirectory,
        blocker: Seen,
        began: float,
        limit_s: float,
        cancel: threading.Event | None,
    ) -> None:
        """Sleeps until the blocker has gone or changed, the time is over, or it is time to look at all again."""
        watch = directory.watch(blocker)
        if watch is None:
            return
        try:
            until = min(began + limit_s, time.monotonic() + _RESCAN_S)
            while (now := time.monotonic()) < until and not watch.changed():
                pause_s = min(_QUICK_POLL_S if now - began < _QUICK_FOR_S else _SLOW_POLL_S, until - now)
                if cancel is None:
                    time.sleep(pause_s)
                elif cancel.wait(pause_s):
                    return
        finally:
            watch.close()

    def _running_s(self) -> float:
        return 0.0 if self._ticket is None else time.monotonic() - self._mode_since

    def _account(self) -> None:
        self._seconds[self.mode] += self._running_s()
        self._mode_since = time.monotonic()


def _timed_out(device: Device, mode: Mode, limit_s: float, holders: list[Holder], position: int) -> LeaseTimeout:
    named = [f"pid {h.pid} ({', '.join(filter(None, (h.mode, h.purpose)))}) for {h.since_s:.0f} s" for h in holders]
    return LeaseTimeout(
        f"no {mode} lease on {device.uuid} within {limit_s:g} s: place {position} in the queue, "
        f"held by {'; '.join(named) or 'nobody (all before it still wait)'}",
        hint="Ask again later, wait longer, or use another device (`fk gpus` shows them)",
    )


def _mutex_limit_s(limit_s: float) -> float:
    """The mutex is held for less than a millisecond, unless a process was stopped inside: then waiting is no use."""
    return min(max(limit_s, 1.0), 30.0)


def _file_name(uuid: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", uuid):
        raise HarnessError(f"{uuid!r} is not a device UUID", hint="Use a UUID that `fk gpus` prints")
    return uuid


BACKEND = FlockLeases
