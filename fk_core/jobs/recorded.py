"""What a job of an earlier or another process answers: from the job ledger and the journal alone."""

from __future__ import annotations

import time

from fk_core.errors import UnknownAttempt
from fk_core.jobs.base import Attempts
from fk_core.jobs.ledger import JobLedger
from fk_core.records.job import JobState, JobStatus
from fk_core.records.report import Outcome, ValidateReport

ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.INTERRUPTED})


def recorded_status(key: str, ledger: JobLedger, journal: Attempts) -> JobStatus | None:
    """What is on record of a job; ``key`` is its id or that of its attempt. None for an unknown id."""
    entry = ledger.find(key)
    attempt_id = key if entry is None else entry.attempt_id
    report: ValidateReport | None = None
    pid, client = 0 if entry is None else entry.pid, ""
    running = entry is not None and entry.owner_alive
    if attempt_id:
        try:
            _, report = journal.read(attempt_id)
            attempt = journal.attempt(attempt_id)
            running, pid, client = attempt.running, pid or attempt.pid, attempt.client
        except UnknownAttempt:
            # A job that the ledger has and the journal lacks is still a job: its owner says how it stands.
            if entry is None:
                return None
    elif entry is None:
        return None
    if report is not None and report.outcome is not Outcome.CANCELLED:
        state = JobState.COMPLETED
    elif entry is not None and entry.status:
        state = JobState(entry.status)
    elif report is not None:
        state = JobState.CANCELLED
    else:
        # Of an attempt without a job, as the command line makes them, nobody has recorded whether it waits.
        worked = entry is None or entry.working
        state = JobState.INTERRUPTED if not running else JobState.WORKING if worked else JobState.QUEUED
    job_id, elapsed_s, doing, error = attempt_id, 0.0, "", ""
    if entry is not None:
        job_id = entry.job_id
        error = entry.error
        elapsed_s = max(0.0, (entry.ended or (time.time() if running else entry.submitted)) - entry.submitted)
    if state not in ENDED:
        does = "waits" if state is JobState.QUEUED else "runs" if entry is not None else "runs, or waits to,"
        doing = f"{does} in another process, pid {pid or 'unknown'}" + (f", for {client}" if client else "")
    elif state is JobState.INTERRUPTED:
        when = "before" if entry is not None and not entry.working else "while"
        error = f"its process ended {when} this ran"
    return JobStatus(
        status=state,
        job_id=job_id,
        attempt_id=attempt_id,
        doing=doing,
        progress=1.0 if state is JobState.COMPLETED else None,
        elapsed_s=round(elapsed_s, 2),
        next=how_to_go_on(state, job_id, attempt_id),
        result=None if report is None else report.model_dump(mode="json"),
        error=error,
    )


def how_to_go_on(state: JobState, job_id: str, attempt_id: str) -> str:
    """The ``next`` of the envelope."""
    if state not in ENDED:
        return f"get_job(job_id='{job_id}', wait_s=45)"
    if state is JobState.INTERRUPTED:
        return "submit the same kernel again; what had finished is answered from the record"
    return f"read fk://attempts/{attempt_id}/report for the whole report" if attempt_id else ""
