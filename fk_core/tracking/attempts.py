"""One attempt as the history shows it."""

from __future__ import annotations

from dataclasses import dataclass

from fk_core import alive
from fk_core.records.report import Outcome, blame_of


@dataclass
class Attempt:
    """One line of the history."""

    attempt_id: str
    op: str
    began: float
    """Seconds since the epoch."""
    identity: str
    source_sha256: str
    owner: str = ""
    """Names the process that runs it, see ``alive.mark``."""
    client: str = ""
    outcome: Outcome | None = None
    """None until it is finished."""
    finished: float | None = None
    winner: bool = False
    speedup: float | None = None
    device: str = ""
    summary: str = ""

    @property
    def running(self) -> bool:
        return self.outcome is None and alive.is_alive(self.owner)

    @property
    def pid(self) -> int:
        return alive.pid_of(self.owner)

    @property
    def interrupted(self) -> bool:
        return self.outcome is None and not alive.is_alive(self.owner)

    @property
    def reusable(self) -> bool:
        """Whether the outcome says something about the candidate, so that it may answer an identical submission."""
        return self.outcome is Outcome.PASSED or (self.outcome is not None and blame_of(self.outcome) == "candidate")
