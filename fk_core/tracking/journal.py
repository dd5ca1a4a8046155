"""Every attempt, with its source and its report: written first, kept for good.

    journal/                     mode 0700
      events.jsonl               what happened, one line an event: ``begin`` and ``finish``
      sources/ab/abcd....py      candidate sources under their SHA-256
      requests/DATE/ID.json      the request without its source
      reports/DATE/ID.json       the report

A file that an event speaks of is on the disk before the event is. An attempt that began and never finished, and whose
process is gone, was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fk_core import alive, filelock, rights
from fk_core.errors import JournalError, UnknownAttempt
from fk_core.records.base import Record
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from fk_core.settings import Settings
from fk_core.tracking.attempts import Attempt
from fk_core.tracking.ledger import Ledger, Position, private_directory, write_file

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


_Attempts = list[Attempt]


class Journal:
    """Safe to use from several threads and processes at once."""

    def __init__(self, settings: Settings) -> None:
        self.path = settings.journal_dir
        self._ledger = Ledger(self.path / "events.jsonl")
        self._lock = threading.RLock()
        self._position = Position()
        self._attempts: dict[str, Attempt] = {}
        self._by_identity: dict[str, list[str]] = {}

    def begin(self, request: ValidateRequest, identity: str) -> str:
        """Records a submission before anything is run and returns its attempt id.

        ``identity`` names everything that decides the answer; equal identities have equal answers.

        Raises:
            JournalError: it could not be written; then nothing was.
        """
        source = _encoded(request.source)
        digest = hashlib.sha256(source).hexdigest()
        with self._lock, _faults("recorded"):
            rights.directory(self.path.parent)
            private_directory(self.path)
            stored = self._source_path(digest)
            if not _has_size(stored, len(source)):
                write_file(stored, source)
            attempt_id = _new_id()
            write_file(self._file("requests", attempt_id), _as_json(request, "source"))
            began = {
                "event": "begin",
                "attempt": attempt_id,
                "at": round(time.time(), 3),
                "op": request.op,
                "identity": identity,
                "source": digest,
                "owner": alive.mark(),
                "client": request.client,
            }
            with self._ledger.writing() as fd:
                self._ledger.append(fd, began)
            self._refresh()
        return attempt_id

    def finish(self, attempt_id: str, report: ValidateReport) -> None:
        """Records the answer of an attempt that was begun; the first answer stands.

        Raises:
            UnknownAttempt: it was never begun.
            JournalError: it has an answer already, or this one could not be written.
        """
        with self._lock, _faults("finished"):
            text = _as_json(report)
            self._known(attempt_id)
            with self._ledger.writing() as fd:
                self._refresh()
                if self._attempts[attempt_id].outcome is not None:
                    raise JournalError(f"attempt {attempt_id} is finished already", hint="Begin a new attempt")
                write_file(self._file("reports", attempt_id), text)
                ended = {
                    "event": "finish",
                    "attempt": attempt_id,
                    "at": round(time.time(), 3),
                    "outcome": report.outcome.value,
                    "winner": report.winner,
                    "speedup": report.speed.speedup,
                    "device": report.machine.device if report.machine else "",
                    "summary": report.summary[:500],
                }
                self._ledger.append(fd, ended)
            self._refresh()

    def read(self, attempt_id: str) -> tuple[ValidateRequest, ValidateReport | None]:
        """The request with its source, and the report if the attempt is finished.

        Raises:
            UnknownAttempt: no such attempt.
            JournalError: its files are missing or damaged.
        """
        attempt = self.attempt(attempt_id)
        with _faults("read"):
            source = self._source_path(attempt.source_sha256).read_bytes()
            if hashlib.sha256(source).hexdigest() != attempt.source_sha256:
                raise JournalError(
                    f"the stored source of attempt {attempt_id} was changed", hint=f"See {self.path / 'sources'}"
                )
            about = json.loads(self._file("requests", attempt_id).read_bytes())
            request = ValidateRequest.model_validate({**about, "source": source.decode("utf-8", "surrogatepass")})
            if attempt.outcome is None:
                return request, None
            answer = json.loads(self._file("reports", attempt_id).read_bytes())
            return request, ValidateReport.model_validate(answer)

    def attempt(self, attempt_id: str) -> Attempt:
        """One line of the history.

        Raises:
            UnknownAttempt: no such attempt.
        """
        with self._lock, _faults("read"):
            return self._known(attempt_id)

    def find_identical(self, identity: str) -> str | None:
        """The latest attempt with this identity that passed, or failed by the candidate's own doing."""
        with self._lock, _faults("read"):
            self._refresh()
            for attempt_id in reversed(self._by_identity.get(identity, [])):
                if self._attempts[attempt_id].reusable and self._file("reports", attempt_id).is_file():
                    return attempt_id
        return None

    def list(self, op: str = "", limit: int = 20, *, best: bool = False) -> _Attempts:
        """Attempts, latest first; with ``best`` only those that passed, highest speedup first (None last)."""
        with self._lock, _faults("read"):
            self._refresh()
            chosen = [a for a in reversed(self._attempts.values()) if not op or a.op == op]
        if best:
            passed = [a for a in chosen if a.outcome is Outcome.PASSED]
            chosen = sorted(passed, key=lambda a: float("-inf") if a.speedup is None else a.speedup, reverse=True)
        return chosen[: max(0, limit)]

    def interrupted(self) -> _Attempts:
        """Attempts that were begun by a process that is gone and never finished, latest first."""
        with self._lock, _faults("read"):
            self._refresh()
            return [a for a in reversed(self._attempts.values()) if a.interrupted]

    def _known(self, attempt_id: str) -> Attempt:
        self._refresh()
        found = self._attempts.get(attempt_id)
        if found is None:
            latest = [a.attempt_id for a in list(reversed(self._attempts.values()))[:3]]
            hint = f"The latest are {', '.join(latest)}" if latest else f"The journal in {self.path} is empty"
            raise UnknownAttempt(f"no attempt {attempt_id!r}", hint=hint)
        return found

    def _refresh(self) -> None:
        self._position, again, events = self._ledger.read_from(self._position)
        if again:
            self._attempts.clear()
            self._by_identity.clear()
        for event in events:
            self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        """Takes an event into the index; an event of another kind, from a later version, is passed over."""
        kind, attempt_id = event.get("event"), str(event.get("attempt", ""))
        if kind == "begin":
            attempt = Attempt(
                attempt_id=attempt_id,
                op=str(event.get("op", "")),
                began=float(event.get("at", 0.0)),
                identity=str(event.get("identity", "")),
                source_sha256=str(event.get("source", "")),
                owner=str(event.get("owner", "")),
                client=str(event.get("client", "")),
            )
            self._attempts[attempt_id] = attempt
            self._by_identity.setdefault(attempt.identity, []).append(attempt_id)
        elif kind == "finish" and attempt_id in self._attempts and event.get("outcome") in set(Outcome):
            attempt = self._attempts[attempt_id]
            attempt.outcome = Outcome(event["outcome"])
            attempt.finished = float(event.get("at", 0.0))
            attempt.winner = bool(event.get("winner", False))
            attempt.speedup = event.get("speedup")
            attempt.device = str(event.get("device", ""))
            attempt.summary = str(event.get("summary", ""))

    def _source_path(self, digest: str) -> Path:
        return self.path / "sources" / digest[:2] / f"{digest}.py"

    def _file(self, folder: str, attempt_id: str) -> Path:
        return self.path / folder / attempt_id[2:10] / f"{attempt_id}.json"


@contextmanager
def _faults(doing: str) -> Iterator[None]:
    """Turns what the file system or a damaged file raises into a JournalError."""
    try:
        yield
    except OSError as e:
        raise JournalError(
            f"an attempt could not be {doing}: {e.strerror or e} ({e.filename or 'events.jsonl'})",
            hint="Check free space and permissions of FK_HOME",
        ) from e
    except filelock.LockBusy as e:
        raise JournalError(
            f"an attempt could not be {doing}: {e}", hint="A process that holds the lock is stopped or hangs; end it"
        ) from e
    except ValidationError as e:
        raise JournalError(
            f"an attempt could not be {doing}: its file is of another version: {e.errors()[0]['msg']}",
            hint="Use the version of FK server that wrote it",
        ) from e
    except ValueError as e:
        raise JournalError(
            f"an attempt could not be {doing}: it is damaged, or holds what JSON cannot say: {e}",
            hint="Report this with the attempt's files",
        ) from e


def _new_id() -> str:
    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"a-{now}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


def _encoded(source: str) -> bytes:
    """Also of a source with lone surrogates, which no file can hold but a caller can send."""
    return source.encode("utf-8", "surrogatepass")


def _as_json(record: Record, *without: str) -> bytes:
    """ASCII, so that lone surrogates (undecodable file names, a candidate's output) can be written and read again."""
    return json.dumps(record.model_dump(exclude=set(without)), allow_nan=False).encode("ascii")


def _has_size(path: Path, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except FileNotFoundError:
        return False
