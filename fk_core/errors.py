"""Everything that can go wrong outside a candidate.

    FkError                     code, message, hint: what was asked and found, and what to do
    ├── RequestError            the caller can mend it (exit code 2)
    │   ├── UnknownTask         no such operator; carries the nearest names
    │   ├── UnknownCase         a case pattern that matches nothing
    │   ├── BadSource           unreadable, oversized or undecodable candidate source
    │   ├── BadPath             a path outside the allowed roots, or not there
    │   ├── UnknownAttempt      no such attempt id in the journal
    │   ├── UnknownDevice       the name of no device at all, or of none that is here
    │   ├── UnknownJob          no such job id
    │   └── ForeignJob          a job that only another process can stop; carries whose it is
    ├── HarnessError            our fault (exit code 3)
    │   ├── ZygoteDied          the warm parent of the candidates is gone
    │   ├── JudgeDied           the trusted judge is gone
    │   ├── TaskBroken          a task file is malformed, or accepts what it must reject
    │   └── JournalError        an attempt could not be written
    ├── MachineError            the machine's fault (exit code 3)
    │   ├── NoDevice            a GPU was asked for and there is none
    │   ├── LeaseTimeout        no device came free in time; carries who holds it
    │   └── DeviceBroken        a trusted probe of the device failed
    └── Cancelled               the caller changed its mind (exit code 3)

Two more stand where they are raised: ``blame.CandidateLost``, a HarnessError, and ``neighbours.Contended``, a
MachineError.

What a candidate does wrong is no exception: it is an outcome in the report (``records.report``).
"""

from __future__ import annotations


class FkError(Exception):
    """Base of all errors that a person or an agent may read."""

    code = "error"
    exit_code = 3

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class RequestError(FkError):
    code = "bad_request"
    exit_code = 2


class UnknownTask(RequestError):
    code = "unknown_task"


class UnknownCase(RequestError):
    code = "unknown_case"


class UnknownDevice(RequestError):
    code = "unknown_device"


class BadSource(RequestError):
    code = "bad_source"


class BadPath(RequestError):
    code = "bad_path"


class UnknownAttempt(RequestError):
    code = "unknown_attempt"


class UnknownJob(RequestError):
    code = "unknown_job"


class ForeignJob(RequestError):
    code = "foreign_job"


class HarnessError(FkError):
    code = "harness_fault"


class ZygoteDied(HarnessError):
    code = "zygote_died"


class JudgeDied(HarnessError):
    code = "judge_died"


class TaskBroken(HarnessError):
    code = "task_broken"


class JournalError(HarnessError):
    code = "journal_error"


class MachineError(FkError):
    code = "machine_fault"


class NoDevice(MachineError):
    code = "no_device"


class LeaseTimeout(MachineError):
    code = "no_gpu_in_time"


class DeviceBroken(MachineError):
    code = "device_broken"


class Cancelled(FkError):
    """The caller cancelled the work; nothing is wrong."""

    code = "cancelled"
    exit_code = 3
