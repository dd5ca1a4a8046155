"""What jobs need from the harness, as protocols: the job store is built and tested without one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from fk_core.records.report import ValidateReport, ValidateRequest
from fk_core.settings import Settings

Progress = Callable[[str, float | None], None]
"""What happens now, in words, and the share done (0 to 1) where it is known."""


class Attempt(Protocol):
    @property
    def running(self) -> bool:
        """Not finished, and the process that runs it is alive."""
        ...

    @property
    def pid(self) -> int:
        """The process that runs it, or ran it; 0 where that is not known."""
        ...

    @property
    def client(self) -> str:
        """Who asked for it."""
        ...


class Attempts(Protocol):
    """The journal, as far as jobs read it."""

    def read(self, attempt_id: str) -> tuple[ValidateRequest, ValidateReport | None]:
        """Request and report of an attempt; no report where it is not finished. Raises ``UnknownAttempt``."""
        ...

    def attempt(self, attempt_id: str) -> Attempt:
        """Raises ``UnknownAttempt``."""
        ...


class Validates(Protocol):
    """The one long verb of the harness."""

    @property
    def settings(self) -> Settings: ...

    @property
    def journal(self) -> Attempts: ...

    def validate(
        self,
        request: ValidateRequest,
        progress: Progress = ...,
        cancel: threading.Event | None = None,
        begun: Callable[[str], None] | None = None,
        queued: Callable[[int], None] = ...,
    ) -> ValidateReport:
        """Run one validation.

        ``begun`` is told the attempt id once, as soon as the journal holds the attempt; ``queued`` how many come before
        this one, whenever that changes, and 0 once it runs.
        """
        ...
