"""What a lease is, whoever gives it.

A lease is the right to use one device: ``shared`` for warm-up and correctness, ``exclusive`` for tuning and timing.

* First come, first served, over both modes: a later shared request never overtakes an exclusive one that waits, so
  nobody starves. Shared requests next to each other run together.
* Queueing and holding have separate time limits. A request that waits too long gets :class:`LeaseTimeout` with the
  names of the holders. A holder past its limit is told through ``on_overdue`` and is shown as overdue to all who wait;
  it is never robbed, because its work would go on and spoil the measurement of the next one. A harness cancels its
  own job when told; a stopped or hanging process is named, so that a person can end it.
* Death of a holder or waiter at any instant, however violent, frees its place.
* :meth:`Lease.upgrade` gives up the shared lease and queues for an exclusive one. Two shared holders that both upgrade
  therefore never wait for each other. What was seen on the device before the upgrade may have changed after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from fk_core.errors import HarnessError
from fk_core.records.device import Device, Holder
from fk_core.settings import Settings

Mode = Literal["shared", "exclusive"]

OnWait = Callable[[int, list[Holder]], None]
"""Called when a request begins to wait and whenever its place changes: place in the queue (1 is next), who holds."""


class Lease(Protocol):
    """A granted right; leaving its ``with`` block gives it back."""

    @property
    def device(self) -> Device: ...

    @property
    def mode(self) -> Mode: ...

    @property
    def held(self) -> bool:
        """False after release, and after an upgrade that failed."""

    @property
    def held_s(self) -> float:
        """Seconds held so far, in both modes together; waiting for an upgrade does not count."""

    @property
    def exclusive_s(self) -> float:
        """The part of ``held_s`` that was exclusive."""

    @property
    def waited_s(self) -> float:
        """Seconds spent in queues until now, for the first grant and for upgrades; grows while it waits."""

    @property
    def overdue(self) -> bool:
        """Whether the present grant is older than the hold limit."""

    def upgrade(
        self,
        mode: Literal["exclusive"] = "exclusive",
        *,
        timeout_s: float | None = None,
        cancel: threading.Event | None = None,
        on_wait: OnWait | None = None,
    ) -> None:
        """Trades shared for exclusive, waiting in the queue without holding anything.

        Raises:
            LeaseTimeout: not granted in time; nothing is held any more.
            Cancelled: ``cancel`` was set; nothing is held any more.
        """

    def downgrade(self) -> None:
        """Trades exclusive for shared at once; shared requests that wait next come in."""

    def release(self) -> None:
        """Gives the device back; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True)
class Queue:
    """Who holds a device and who waits for it, oldest first."""

    holders: list[Holder] = field(default_factory=list)
    waiting: list[Holder] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.holders) + len(self.waiting)


class LeaseBackend(Protocol):
    """Gives leases. Safe to use from several threads."""

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
    ) -> Lease:
        """Waits for the device.

        ``timeout_s`` limits the queueing (None: the settings' default; 0: do not wait). ``hold_s`` limits each grant;
        past it, ``on_overdue`` is called once, from another thread.

        Raises:
            LeaseTimeout: not granted in time; names the holders.
            Cancelled: ``cancel`` was set while waiting.
        """

    def queue(self, uuid: str) -> Queue:
        """Holders and waiters of one device."""

    def status(self) -> dict[str, Queue]:
        """The same for every device on which a lease was ever asked for, by UUID."""


def load(name: str, settings: Settings) -> LeaseBackend:
    """The backend of file ``leases/NAME.py``, which names its class ``BACKEND``."""
    files = Path(__file__).parent.glob("*.py")
    present = sorted(p.stem for p in files if "\nBACKEND = " in p.read_text(encoding="utf-8"))
    if name not in present:
        raise HarnessError(f"no lease backend {name!r}", hint=f"There are: {', '.join(present)}")
    backend: LeaseBackend = import_module(f"fk_core.leases.{name}").BACKEND(settings)
    return backend


def waiting(place: int, holders: list[Holder]) -> str:
    """In words: the place in the queue, and who holds the device."""
    held = ", ".join(f"{x.purpose or 'pid'} ({x.pid})" for x in holders[:3])
    return f"waiting for the device: place {place}" + (f", held by {held}" if held else "")
