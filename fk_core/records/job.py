"""The envelope of every tool that can be long."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from fk_core.records.base import Record


class JobState(StrEnum):
    QUEUED = "queued"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


UNFINISHED = 0.99
"""The largest share done of what has not ended."""


class JobStatus(Record):
    status: JobState
    job_id: str
    attempt_id: str = ""
    queue_position: int | None = None
    """How many come before it, the one that runs included: 1 is next."""
    doing: str = ""
    """What happens now, in words."""
    progress: float | None = None
    """Share done of what it does now, 0 to 1, where that is known; 1 is a job that is completed."""
    elapsed_s: float = 0.0
    next: str = ""
    """How to ask again."""
    result: dict[str, Any] | None = None
    error: str = ""
