"""Jobs that live in the server and not in a request: submit, watch, wait, cancel.

A job is ``queued`` until the harness says that it runs: also while a worker has it that waits for the device.

A job runs in a thread of this process and dies with it. What it found is in the journal, and which attempt it was is
in the ledger, so that its id still answers after a restart: with the result, or as ``interrupted``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fk_core.errors import Cancelled, FkError, ForeignJob, HarnessError, JournalError, UnknownJob
from fk_core.jobs.base import Validates
from fk_core.jobs.ledger import JobLedger
from fk_core.jobs.recorded import ENDED, how_to_go_on, recorded_status
from fk_core.records.job import UNFINISHED, JobState, JobStatus
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest

log = logging.getLogger(__name__)

_KEPT = 256
"""Ended jobs that stay in memory; older ones are answered from ledger and journal."""


@dataclass(eq=False)
class _Job:
    job_id: str
    key: str
    request: ValidateRequest
    state: JobState = JobState.QUEUED
    doing: str = "waiting for a free worker"
    progress: float | None = None
    ahead: int | None = None
    """How many come before it, where the harness has said so."""
    attempt_id: str = ""
    report: ValidateReport | None = None
    error: str = ""
    failure: FkError | None = None
    submitted_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    worked: bool = False
    """Whether it has had the device."""
    unwanted: bool = False
    """Whether the caller cancelled it; the end of the server stops jobs that are still wanted."""
    done: threading.Event = field(default_factory=threading.Event)
    watchers: list[Callable[[], None]] = field(default_factory=list)


class Jobs:
    """Runs validations in worker threads. Thread-safe; nothing that a job does can escape its thread."""

    def __init__(self, harness: Validates, *, workers: int = 4) -> None:
        self._harness = harness
        self._ledger = JobLedger(harness.settings.home)
        self._changed = threading.Condition()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._queue: deque[_Job] = deque()
        self._workers = workers
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closing = False

    def submit(self, request: ValidateRequest) -> str:
        """Start a validation and give its job id; the id of the running job where the same request runs already.

        Raises ``JournalError`` where the job could not be recorded; then it isn't started.
        """
        key = _key(request)
        with self._changed:
            if self._closing:
                raise HarnessError("the server is shutting down", hint="Connect again and submit once more")
            for known in self._jobs.values():
                if known.key == key and known.state not in ENDED and not known.cancel.is_set():
                    return known.job_id
            job = _Job(job_id=_new_id(), key=key, request=request)
            self._jobs[job.job_id] = job
        # Files are written without the lock, so that no look at a job ever waits for a disk.
        try:
            self._ledger.submitted(job.job_id, request.op)
        except JournalError as error:
            with self._changed:
                self._end(job, JobState.FAILED, error=f"{error.code}: {error}", failure=error)
            raise
        with self._changed:
            if not job.cancel.is_set():
                self._queue.append(job)
                if self._idle < len(self._queue) and len(self._threads) < self._workers:
                    thread = threading.Thread(target=self._work, name=f"fk-job-{len(self._threads)}", daemon=True)
                    self._threads.append(thread)
                    thread.start()
                self._changed.notify()
                return job.job_id
        self._end_unstarted(job)
        return job.job_id

    def holds(self, job_id: str) -> bool:
        """Whether the job is one of this process, so that :meth:`watch` hears of it."""
        with self._changed:
            return self._find(job_id) is not None

    def has_ended(self, job_id: str) -> bool:
        """Whether a job of this process has ended; cheap, and False for any other."""
        with self._changed:
            job = self._jobs.get(job_id)
            return job is not None and job.state in ENDED

    def status(self, job_id: str) -> JobStatus:
        """What is known of a job; ``job_id`` may also be the attempt id. Raises ``UnknownJob``."""
        with self._changed:
            job = self._find(job_id)
            if job is not None:
                return self._status(job)
        recorded = recorded_status(job_id, self._ledger, self._harness.journal)
        if recorded is None:
            raise self._unknown(job_id)
        return recorded

    def wait(self, job_id: str, timeout_s: float) -> JobStatus:
        """Status once the job has ended, or after ``timeout_s`` seconds, whichever comes first."""
        with self._changed:
            job = self._find(job_id)
        if job is not None:
            job.done.wait(timeout_s)
        return self.status(job_id)

    def failure(self, job_id: str) -> FkError | None:
        """The error that ended a job of this process, for callers that want it as an exception."""
        with self._changed:
            job = self._find(job_id)
            return job.failure if job is not None else None

    def cancel(self, job_id: str) -> JobStatus:
        """Ask a job to stop. A queued job is cancelled at once, a running one when its processes are gone.

        Raises ``ForeignJob`` for one that runs in another process.
        """
        unstarted = None
        with self._changed:
            job = self._find(job_id)
            if job is not None and job.state not in ENDED:
                job.unwanted = True
                job.cancel.set()
                job.doing = "stopping"
                if job in self._queue:
                    self._queue.remove(job)
                    unstarted = job
        if unstarted is not None:
            self._end_unstarted(unstarted)
        status = self.status(job_id)
        if job is None and status.status not in ENDED:
            raise ForeignJob(
                f"{job_id} can't be stopped from here: it {status.doing}",
                hint="Only that process can: cancel it in the session that submitted it, or end that process",
            )
        return status

    def known(self) -> list[JobStatus]:
        """The jobs of this process, oldest first."""
        with self._changed:
            return [self._status(job) for job in self._jobs.values()]

    @contextlib.contextmanager
    def watch(self, job_id: str, changed: Callable[[], None]) -> Iterator[None]:
        """Have ``changed`` called, from any thread, whenever the job's status changes; it must not block."""
        with self._changed:
            job = self._find(job_id)
            if job is not None:
                job.watchers.append(changed)
        try:
            yield
        finally:
            if job is not None:
                with self._changed:
                    job.watchers.remove(changed)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel everything and wait, but no longer than ``timeout_s``, for the workers to stop."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closing = True
            for job in self._jobs.values():
                job.cancel.set()
            unstarted = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for job in unstarted:
            self._end_unstarted(job)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- workers -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._queue and not self._closing:
                    self._changed.wait()
                self._idle -= 1
                if not self._queue:
                    return
                job = self._queue.popleft()
                job.doing = "starting"
                self._tell(job)
                for waiting in self._queue:
                    self._tell(waiting)
            self._run(job)

    def _run(self, job: _Job) -> None:
        def progress(doing: str, share: float | None = None) -> None:
            with self._changed:
                if not job.cancel.is_set():
                    job.doing = doing
                job.progress = None if share is None else min(UNFINISHED, max(0.0, share))
                self._tell(job)

        def queued(ahead: int) -> None:
            with self._changed:
                job.state, job.ahead = (JobState.QUEUED, ahead) if ahead else (JobState.WORKING, None)
                first, job.worked = not (ahead or job.worked), job.worked or not ahead
                self._tell(job)
            if first:
                self._record(self._ledger.working, job.job_id)

        def begun(attempt_id: str) -> None:
            with self._changed:
                job.attempt_id = attempt_id
            self._record(self._ledger.begun, job.job_id, attempt_id)

        state, error, failure, report = JobState.FAILED, "", None, None
        try:
            report = self._harness.validate(
                job.request, progress=progress, cancel=job.cancel, begun=begun, queued=queued
            )
            state = _stopped(job) if report.outcome is Outcome.CANCELLED else JobState.COMPLETED
        except Cancelled as fault:
            state, error = _stopped(job), str(fault)
        except FkError as fault:
            error, failure = f"{fault.code}: {fault}", fault
        except BaseException as fault:
            # Also SystemExit and its kind: a worker that dies would leave its job working for ever.
            log.exception("job %s failed", job.job_id)
            failure = HarnessError(
                f"the harness failed with {type(fault).__name__}: {fault}", hint="The server's log has the traceback"
            )
            error = f"{failure.code}: {failure}"
        self._record(self._ledger.ended, job.job_id, state.value, error)
        with self._changed:
            self._end(job, state, error=error, failure=failure, report=report)

    def _end_unstarted(self, job: _Job) -> None:
        state, error = _stopped(job), "stopped before it started"
        self._record(self._ledger.ended, job.job_id, state.value, error)
        with self._changed:
            self._end(job, state, error=error)

    def _record(self, write: Callable[..., None], *told: str) -> None:
        """Write to the ledger. If that fails nothing stops: this process knows all of it, and the journal has attempts
        and answers; only how the job stands would not outlive this process.
        """
        try:
            write(*told)
        except JournalError:
            log.exception("the job ledger could not be written")

    def _end(
        self,
        job: _Job,
        state: JobState,
        *,
        error: str = "",
        failure: FkError | None = None,
        report: ValidateReport | None = None,
    ) -> None:
        """Set the end of a job and wake who waits. The lock is held."""
        job.report, job.error, job.failure = report, error, failure
        job.attempt_id = (report.attempt_id if report is not None else "") or job.attempt_id
        job.state, job.doing, job.ended_s = state, "", time.monotonic()
        job.progress = 1.0 if state is JobState.COMPLETED else job.progress
        self._tell(job)
        job.done.set()
        ended = [known for known in self._jobs.values() if known.state in ENDED]
        for old in ended[: max(0, len(ended) - _KEPT)]:
            del self._jobs[old.job_id]

    def _tell(self, job: _Job) -> None:
        for changed in job.watchers:
            changed()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _find(self, job_id: str) -> _Job | None:
        job = self._jobs.get(job_id)
        if job is None and job_id:
            job = next((known for known in reversed(self._jobs.values()) if known.attempt_id == job_id), None)
        return job

    def _status(self, job: _Job) -> JobStatus:
        return JobStatus(
            status=job.state,
            job_id=job.job_id,
            attempt_id=job.attempt_id,
            queue_position=self._place(job),
            doing=job.doing,
            progress=job.progress,
            elapsed_s=round((job.ended_s or time.monotonic()) - job.submitted_s, 2),
            next=how_to_go_on(job.state, job.job_id, job.attempt_id),
            result=None if job.report is None else job.report.model_dump(mode="json"),
            error=job.error,
        )

    def _place(self, job: _Job) -> int | None:
        """How many come before a job that does not run yet; None where that is not known or no longer matters."""
        if job.state is not JobState.QUEUED or job not in self._queue:
            return job.ahead if job.state is JobState.QUEUED else None
        # Those that workers have and that do not run yet come first.
        taken = sum(known.state is JobState.QUEUED for known in self._jobs.values()) - len(self._queue)
        return taken + self._queue.index(job) + 1

    def _unknown(self, job_id: str) -> UnknownJob:
        with self._changed:
            known = [job.job_id for job in self._jobs.values()][-5:]
        known = known or self._ledger.latest(5)
        return UnknownJob(f"no job {job_id!r}; latest: {', '.join(known) or 'none'}", hint="Submit the kernel again")


def _stopped(job: _Job) -> JobState:
    """How a job that was stopped has ended; a harness may also stop one of its own accord."""
    return JobState.INTERRUPTED if job.cancel.is_set() and not job.unwanted else JobState.CANCELLED


def _key(request: ValidateRequest) -> str:
    """What makes two submissions the same while one of them runs."""
    text = json.dumps([request.options(), request.fresh, request.source], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _new_id() -> str:
    return f"job-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
