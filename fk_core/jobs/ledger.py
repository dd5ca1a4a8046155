"""How jobs began and ended, on disk, so that a job id outlives the server that gave it out.

Requests and reports are not here: the journal has them. What only this ledger knows is which attempt a job made, and
the jobs that never came so far: still queued, or cancelled or refused before an attempt was begun.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fk_core import alive, filelock, rights
from fk_core.errors import JournalError
from fk_core.tracking.ledger import Ledger, Position, private_directory


@dataclass(frozen=True)
class Entry:
    """What the ledger knows of one job."""

    job_id: str
    owner: str
    """Names the process that it belongs to, see ``alive.mark``."""
    submitted: float
    attempt_id: str = ""
    working: bool = False
    """Whether it ran: until then it waited, also with an attempt, for the device."""
    status: str = ""
    """How it ended, or empty while it has not."""
    error: str = ""
    ended: float = 0.0

    @property
    def owner_alive(self) -> bool:
        return alive.is_alive(self.owner)

    @property
    def pid(self) -> int:
        return alive.pid_of(self.owner)


class JobLedger:
    """Append-only, under ``home/jobs``; safe to use from several threads and processes at once."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "jobs"
        self._ledger = Ledger(self._directory / "events.jsonl")
        self._lock = threading.Lock()
        self._position = Position()
        self._entries: dict[str, Entry] = {}
        self._by_attempt: dict[str, str] = {}

    def submitted(self, job_id: str, op: str) -> None:
        """Record a new job. Raises ``JournalError`` if it could not be written."""
        self._append({"event": "submitted", "job": job_id, "op": op, "owner": alive.mark()})

    def begun(self, job_id: str, attempt_id: str) -> None:
        """Record which attempt a job makes. Raises ``JournalError`` if it could not be written."""
        self._append({"event": "begun", "job": job_id, "attempt": attempt_id})

    def working(self, job_id: str) -> None:
        """Record that a job has the device. Raises ``JournalError`` if it could not be written."""
        self._append({"event": "working", "job": job_id})

    def ended(self, job_id: str, status: str, error: str) -> None:
        """Record the end of a job. Raises ``JournalError`` if it could not be written."""
        self._append({"event": "ended", "job": job_id, "status": status, "error": error[:2000]})

    def find(self, key: str) -> Entry | None:
        """The entry of a job, by its own id or that of its attempt."""
        with self._lock:
            self._refresh()
            return self._entries.get(self._by_attempt.get(key, key))

    def latest(self, count: int) -> list[str]:
        """Ids of the last jobs, latest last."""
        with self._lock:
            self._refresh()
            return list(self._entries)[-count:]

    def _append(self, event: dict[str, Any]) -> None:
        try:
            rights.directory(self._directory.parent)
            private_directory(self._directory)
            with self._ledger.writing() as fd:
                self._ledger.append(fd, {**event, "at": round(time.time(), 3)})
        except (OSError, filelock.LockBusy) as error:
            raise JournalError(
                f"the job could not be recorded in {self._directory}: {error}", hint="Check space and rights there"
            ) from error

    def _refresh(self) -> None:
        self._position, again, events = self._ledger.read_from(self._position)
        if again:
            self._entries.clear()
            self._by_attempt.clear()
        for event in events:
            job_id, at = str(event.get("job", "")), float(event.get("at", 0.0))
            if event.get("event") == "submitted" and job_id:
                self._entries[job_id] = Entry(job_id=job_id, owner=str(event.get("owner", "")), submitted=at)
            elif event.get("event") == "begun" and job_id in self._entries:
                attempt_id = str(event.get("attempt", ""))
                self._entries[job_id] = replace(self._entries[job_id], attempt_id=attempt_id)
                self._by_attempt[attempt_id] = job_id
            elif event.get("event") == "working" and job_id in self._entries:
                self._entries[job_id] = replace(self._entries[job_id], working=True)
            elif event.get("event") == "ended" and job_id in self._entries:
                self._entries[job_id] = replace(
                    self._entries[job_id],
                    status=str(event.get("status", "")),
                    error=str(event.get("error", "")),
                    ended=at,
                )
