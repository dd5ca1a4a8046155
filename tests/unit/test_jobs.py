"""Jobs in process, and what their ids answer in the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fk_core.errors import FkError, ForeignJob, HarnessError, JournalError, NoDevice, UnknownJob
from fk_core.jobs import Jobs
from fk_core.jobs.ledger import JobLedger
from fk_core.records.job import JobState
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from tests.server.fakes import FakeAttempt, FakeHarness, settings_in


@pytest.fixture
def harness(tmp_path: Path) -> FakeHarness:
    return FakeHarness(settings_in(tmp_path))


@pytest.fixture
def jobs(harness: FakeHarness) -> Iterator[Jobs]:
    made = Jobs(harness, workers=2)
    yield made
    made.close()


def request(source: str = "x", **options: Any) -> ValidateRequest:
    return ValidateRequest(op="rms_norm", source=source, **options)


def within(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether a condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_job_runs_and_keeps_its_result(jobs: Jobs) -> None:
    job_id = jobs.submit(request())
    status = jobs.wait(job_id, 10)
    assert status.status is JobState.COMPLETED
    assert status.result is not None
    assert status.result["outcome"] == "PASSED"
    assert status.progress == 1.0
    assert jobs.status(status.attempt_id).job_id == job_id


def test_wait_gives_up_in_time(jobs: Jobs) -> None:
    status = jobs.wait(jobs.submit(request("#sleep 30")), 0.05)
    assert status.status in (JobState.QUEUED, JobState.WORKING)
    assert "get_job" in status.next


def test_the_same_request_joins_only_while_it_runs(jobs: Jobs, harness: FakeHarness) -> None:
    first = jobs.submit(request("#sleep 0.3"))
    assert jobs.submit(request("#sleep 0.3")) == first
    assert jobs.submit(request("#sleep 0.3", cases="quick")) != first
    assert jobs.submit(request("#sleep 0.3", fresh=True)) != first
    jobs.wait(first, 10)
    assert jobs.submit(request("#sleep 0.3")) != first


def test_many_threads_submitting_the_same_start_it_once(jobs: Jobs, harness: FakeHarness) -> None:
    ids: list[str] = []
    gate = threading.Barrier(8)

    def submit() -> None:
        gate.wait(10)
        ids.append(jobs.submit(request("#sleep 0.5")))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(set(ids)) == 1
    jobs.wait(ids[0], 10)
    assert harness.started == 1


def test_queue_positions_and_order(jobs: Jobs, harness: FakeHarness) -> None:
    running = [jobs.submit(request(f"#sleep 30\n#{i}")) for i in range(2)]
    waiting = [jobs.submit(request(f"#sleep 0\n#{i}")) for i in range(3)]
    deadline = time.monotonic() + 10
    while jobs.status(waiting[0]).queue_position != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [jobs.status(job).queue_position for job in waiting] == [1, 2, 3]
    jobs.cancel(waiting[1])
    assert jobs.status(waiting[1]).status is JobState.CANCELLED
    assert jobs.status(waiting[2]).queue_position == 2
    for job in running:
        jobs.cancel(job)
    assert jobs.wait(waiting[2], 10).status is JobState.COMPLETED
    assert all(jobs.wait(job, 10).status is JobState.CANCELLED for job in running)


def test_a_job_is_queued_until_it_runs(jobs: Jobs, harness: FakeHarness) -> None:
    """Also where a worker has it, that waits for the device."""
    harness.line = 3
    taken = [jobs.submit(request(f"#sleep 30\n#{i}")) for i in range(2)]
    behind = jobs.submit(request("#sleep 30\n#behind"))
    assert within(lambda: [jobs.status(job).queue_position for job in taken] == [3, 3])
    assert {jobs.status(job).status for job in [*taken, behind]} == {JobState.QUEUED}
    assert jobs.status(behind).queue_position == 3, "both that workers have, and whatever runs"
    harness.line = 0
    assert within(lambda: all(jobs.status(job).status is JobState.WORKING for job in taken))
    assert [jobs.status(job).queue_position for job in [*taken, behind]] == [None, None, 1]


def test_a_job_of_another_process_that_has_not_begun_is_queued(harness: FakeHarness) -> None:
    JobLedger(harness.settings.home).submitted("job-elsewhere", "rms_norm")
    status = Jobs(harness).status("job-elsewhere")
    assert (status.status, status.doing) == (JobState.QUEUED, f"waits in another process, pid {os.getpid()}")


def test_a_cancelled_job_is_not_joined(jobs: Jobs) -> None:
    first = jobs.submit(request("#sleep 30"))
    jobs.cancel(first)
    second = jobs.submit(request("#sleep 30"))
    assert second != first
    jobs.cancel(second)


def test_cancel_after_the_end_changes_nothing(jobs: Jobs) -> None:
    job_id = jobs.submit(request())
    jobs.wait(job_id, 10)
    assert jobs.cancel(job_id).status is JobState.COMPLETED


@pytest.mark.parametrize(
    "error", [NoDevice("no GPU"), ValueError("a bug"), SystemExit(1), KeyboardInterrupt(), MemoryError()]
)
def test_no_error_leaves_a_job_working_or_kills_its_worker(
    jobs: Jobs, harness: FakeHarness, error: BaseException
) -> None:
    harness.raises["validate"] = error
    for turn in range(4):
        status = jobs.wait(jobs.submit(request(f"x{turn}")), 10)
        assert status.status is JobState.FAILED
        failure = jobs.failure(status.job_id)
        assert isinstance(failure, type(error) if isinstance(error, FkError) else HarnessError)
    harness.raises.clear()
    assert jobs.wait(jobs.submit(request("y")), 10).status is JobState.COMPLETED


def test_a_report_of_a_cancelled_run_is_cancelled(jobs: Jobs, harness: FakeHarness) -> None:
    harness.make_report = lambda request, attempt_id: ValidateReport(
        op=request.op, level=1, outcome=Outcome.CANCELLED, attempt_id=attempt_id
    )
    assert jobs.wait(jobs.submit(request()), 10).status is JobState.CANCELLED


def test_watchers_hear_of_progress_and_end(jobs: Jobs) -> None:
    heard = threading.Event()
    job_id = jobs.submit(request("#sleep 0.2"))
    with jobs.watch(job_id, heard.set):
        assert heard.wait(10)
    jobs.wait(job_id, 10)
    with jobs.watch("job-unknown", heard.set):
        pass


def test_close_interrupts_everything_and_refuses_more(harness: FakeHarness) -> None:
    jobs = Jobs(harness, workers=1)
    running, waiting = jobs.submit(request("#sleep 100")), jobs.submit(request("#sleep 101"))
    deadline = time.monotonic() + 10
    while jobs.status(running).status is not JobState.WORKING and time.monotonic() < deadline:
        time.sleep(0.01)
    jobs.close()
    for job_id in (running, waiting):
        assert jobs.status(job_id).status is JobState.INTERRUPTED
        assert "submit" in jobs.status(job_id).next
        assert Jobs(harness).status(job_id).status is JobState.INTERRUPTED
    assert harness.started == harness.stopped == 1
    with pytest.raises(HarnessError):
        jobs.submit(request())


def test_unknown_ids_name_the_known(jobs: Jobs) -> None:
    job_id = jobs.submit(request())
    jobs.wait(job_id, 10)
    for verb in (jobs.status, jobs.cancel):
        with pytest.raises(UnknownJob, match=job_id):
            verb("job-none")
    with pytest.raises(UnknownJob):
        jobs.status("")


def test_finished_jobs_are_found_by_the_next_process(harness: FakeHarness) -> None:
    first = Jobs(harness)
    job_id = first.submit(request())
    attempt_id = first.wait(job_id, 10).attempt_id
    first.close()
    second = Jobs(harness)
    for key in (job_id, attempt_id):
        status = second.status(key)
        assert status.status is JobState.COMPLETED
        assert (status.job_id, status.attempt_id) == (job_id, attempt_id)
        assert status.result is not None
    with pytest.raises(UnknownJob, match=job_id):
        second.status("job-none")


def test_attempts_without_a_job_are_found_too(harness: FakeHarness) -> None:
    """The command line writes attempts without jobs."""
    report = harness.validate(request())
    status = Jobs(harness).status(report.attempt_id)
    assert status.status is JobState.COMPLETED
    assert status.attempt_id == report.attempt_id


def test_failed_and_cancelled_jobs_keep_their_end(harness: FakeHarness) -> None:
    first = Jobs(harness)
    harness.raises["validate"] = NoDevice("no GPU here")
    failed = first.submit(request())
    first.wait(failed, 10)
    harness.raises.clear()
    cancelled = first.submit(request("#sleep 50"))
    first.cancel(cancelled)
    first.wait(cancelled, 10)
    second = Jobs(harness)
    assert second.status(failed).status is JobState.FAILED
    assert "no GPU here" in second.status(failed).error
    assert second.status(cancelled).status is JobState.CANCELLED


def _submitted_by_a_dead_process(home: Path, job_id: str, attempt_id: str = "", *, ran: bool = True) -> None:
    program = (
        "import sys; from pathlib import Path; from fk_core.jobs.ledger import JobLedger\n"
        "ledger = JobLedger(Path(sys.argv[1])); ledger.submitted(sys.argv[2], 'rms_norm')\n"
        "if sys.argv[3]: ledger.begun(sys.argv[2], sys.argv[3])\n"
        "if sys.argv[4]: ledger.working(sys.argv[2])"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program, str(home), job_id, attempt_id, "ran" * ran], timeout=30, env=environ
    )
    assert done.returncode == 0


def test_a_queued_job_of_a_dead_process_is_interrupted(harness: FakeHarness) -> None:
    _submitted_by_a_dead_process(harness.settings.home, "job-0", ran=False)
    status = Jobs(harness).status("job-0")
    assert status.status is JobState.INTERRUPTED
    assert status.error == "its process ended before this ran"
    assert "submit" in status.next


def test_a_running_job_of_a_dead_process_is_interrupted(harness: FakeHarness) -> None:
    _submitted_by_a_dead_process(harness.settings.home, "job-1", "a-77")
    harness.journal.attempts["a-77"] = (request(), None)
    for key in ("job-1", "a-77"):
        status = Jobs(harness).status(key)
        assert status.status is JobState.INTERRUPTED
        assert (status.job_id, status.attempt_id) == ("job-1", "a-77")
        assert status.error == "its process ended while this ran"


def test_a_job_of_a_dead_process_that_waited_for_the_device_did_not_run(harness: FakeHarness) -> None:
    """It has an attempt as soon as a worker takes it."""
    _submitted_by_a_dead_process(harness.settings.home, "job-3", "a-80", ran=False)
    harness.journal.attempts["a-80"] = (request(), None)
    assert Jobs(harness).status("job-3").error == "its process ended before this ran"


def test_a_job_of_another_process_that_waits_for_the_device_is_queued(harness: FakeHarness) -> None:
    harness.line = 2
    other = Jobs(harness)
    job_id = other.submit(request("#sleep 30"))
    assert within(lambda: other.status(job_id).attempt_id != "")
    here = Jobs(harness)
    harness.journal.lines[other.status(job_id).attempt_id].running = True
    assert here.status(job_id).status is JobState.QUEUED
    assert "waits in another process" in here.status(job_id).doing
    harness.line = 0
    assert within(lambda: here.status(job_id).status is JobState.WORKING)
    assert "runs in another process" in here.status(job_id).doing
    other.close()


def test_no_job_is_done_while_it_works(jobs: Jobs, harness: FakeHarness) -> None:
    gate = threading.Event()

    def validate(request: ValidateRequest, *, progress: Any, **others: Any) -> ValidateReport:
        progress("almost", 1.0)
        gate.wait(10)
        return harness.make_report(request, "a-1")

    harness.validate = validate  # type: ignore[method-assign]
    job_id = jobs.submit(request())
    assert within(lambda: jobs.status(job_id).doing == "almost")
    told = [jobs.status(job_id).progress]
    gate.set()
    told.append(jobs.wait(job_id, 10).progress)
    assert told == [0.99, 1.0]


def test_a_result_that_the_dead_process_had_recorded_is_not_lost(harness: FakeHarness) -> None:
    """Killed between the journal's entry and the ledger's."""
    report = harness.validate(request())
    _submitted_by_a_dead_process(harness.settings.home, "job-2", report.attempt_id)
    for key in ("job-2", report.attempt_id):
        status = Jobs(harness).status(key)
        assert status.status is JobState.COMPLETED
        assert status.job_id == "job-2"
        assert status.result is not None


def test_an_attempt_of_another_living_process_is_working(harness: FakeHarness) -> None:
    """For example one that the command line runs, without a job."""
    harness.journal.attempts["a-78"] = (request(), None)
    harness.journal.lines["a-78"] = FakeAttempt(running=True)
    assert Jobs(harness).status("a-78").status is JobState.WORKING


def test_a_job_that_is_done_is_done_wholly(harness: FakeHarness) -> None:
    """Whatever share the harness told last, in this process and in the next."""
    first = Jobs(harness)
    job_id = first.submit(request("#sleep 0.1"))
    assert first.wait(job_id, 10).progress == 1.0
    assert Jobs(harness).status(job_id).progress == 1.0
    stopped = first.submit(request("#sleep 60"))
    deadline = time.monotonic() + 10
    while first.status(stopped).progress is None and time.monotonic() < deadline:
        time.sleep(0.01)
    first.cancel(stopped)
    ended = first.wait(stopped, 10)
    assert ended.status is JobState.CANCELLED
    assert ended.progress is not None
    assert ended.progress < 1.0


def test_only_the_process_of_a_job_can_stop_it(harness: FakeHarness) -> None:
    other = Jobs(harness)
    job_id = other.submit(request("#sleep 60"))
    deadline = time.monotonic() + 10
    while not other.status(job_id).attempt_id and time.monotonic() < deadline:
        time.sleep(0.01)
    harness.journal.attempts["a-79"] = (request(), None)
    harness.journal.lines["a-79"] = FakeAttempt(running=True, pid=4711, client="fk validate")
    here = Jobs(harness)
    for key, pid in ((job_id, os.getpid()), (other.status(job_id).attempt_id, os.getpid()), ("a-79", 4711)):
        with pytest.raises(ForeignJob, match=rf"{key} can't be stopped .* another process, pid {pid}") as caught:
            here.cancel(key)
        assert "session that submitted it" in caught.value.hint
    assert "for fk validate" in here.status("a-79").doing
    assert other.status(job_id).status is JobState.WORKING
    other.cancel(job_id)
    assert other.wait(job_id, 10).status is JobState.CANCELLED
    assert here.cancel(job_id).status is JobState.CANCELLED


def test_a_working_job_tells_its_attempt(jobs: Jobs) -> None:
    job_id = jobs.submit(request("#sleep 30"))
    deadline = time.monotonic() + 10
    while not jobs.status(job_id).attempt_id and time.monotonic() < deadline:
        time.sleep(0.01)
    attempt_id = jobs.status(job_id).attempt_id
    assert attempt_id
    assert jobs.status(attempt_id).job_id == job_id
    jobs.cancel(attempt_id)
    assert jobs.wait(job_id, 10).status is JobState.CANCELLED


def test_a_job_that_cannot_be_recorded_is_refused(harness: FakeHarness) -> None:
    harness.settings.home.mkdir(parents=True, exist_ok=True)
    (harness.settings.home / "jobs").write_text("in the way", encoding="utf-8")
    with pytest.raises(JournalError, match="could not be recorded"):
        Jobs(harness).submit(request())


def test_many_processes_share_one_ledger(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from fk_core.jobs.ledger import JobLedger\n"
        "l = JobLedger(Path(sys.argv[1]))\n"
        "for i in range(20): l.submitted(f'job-{sys.argv[2]}-{i}', 'rms_norm')"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(number)], env=environ)
        for number in range(3)
    ]
    for process in running:
        assert process.wait(60) == 0
    assert len(JobLedger(tmp_path).latest(1000)) == 60
