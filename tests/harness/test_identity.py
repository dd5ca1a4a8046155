"""Identical submissions are answered from the record, and only those."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fk_core.cpu_clock import Crowd
from fk_core.harness import Harness
from fk_core.leases.devices import cpu_device
from fk_core.leases.flock import FlockLeases
from fk_core.records.report import Machine, Outcome, Speed, SpeedWord, ValidateReport, blame_of
from fk_core.settings import Settings
from tests.harness import kit


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others make unclear is not answered from the record, and they may be busy here."""
    monkeypatch.setattr(Crowd, "cores", 0.0)


def test_an_identical_submission_needs_no_device(shared: Harness) -> None:
    wanted = kit.request(kit.candidate("pass  # identical"), fresh=False)
    first = shared.validate(wanted)
    assert first.identical_to == ""
    with FlockLeases(shared.settings).acquire(cpu_device(), "exclusive"):
        again = shared.validate(wanted)
        cached = shared.cached_report(wanted)
    assert cached == again
    assert again.identical_to == first.attempt_id == again.attempt_id
    assert again.model_copy(update={"identical_to": ""}) == first


def test_what_was_asked_anew_runs_anew(shared: Harness) -> None:
    source = kit.candidate("pass  # anew")
    first = shared.validate(kit.request(source, fresh=False))
    anew = shared.validate(kit.request(source, fresh=True))
    assert anew.identical_to == ""
    assert anew.attempt_id != first.attempt_id
    assert shared.validate(kit.request(source, fresh=False)).identical_to == anew.attempt_id


def test_a_failure_of_the_candidate_is_answered_too(shared: Harness) -> None:
    wanted = kit.request(kit.candidate("raise RuntimeError('known')"), fresh=False)
    first = shared.validate(wanted)
    assert first.outcome is Outcome.CRASHED
    assert shared.validate(wanted).identical_to == first.attempt_id


def test_a_cancelled_one_is_not(shared: Harness) -> None:
    wanted = kit.request(kit.candidate("pass  # cancelled first"), fresh=False)
    cancel = threading.Event()
    cancel.set()
    assert shared.validate(wanted, cancel=cancel).outcome is Outcome.CANCELLED
    assert shared.cached_report(wanted) is None
    assert kit.passed(shared.validate(wanted))


def test_one_that_found_no_device_is_not(tmp_path_factory: pytest.TempPathFactory) -> None:
    from dataclasses import replace

    from fk_core.settings import Leasing

    settings = replace(kit.settings_at(tmp_path_factory.mktemp("fk")), leasing=Leasing(queue_s=0.3))
    with Harness(settings) as harness:
        wanted = kit.request(fresh=False)
        with FlockLeases(settings).acquire(cpu_device(), "exclusive", purpose="somebody else"):
            report = harness.validate(wanted)
        assert report.outcome is Outcome.NO_GPU_IN_TIME
        assert report.blame == "machine"
        assert "somebody else" in report.summary
        assert harness.cached_report(wanted) is None


def test_the_record_is_looked_at_again_when_the_device_is_to_be_had(shared: Harness) -> None:
    """Two threads with one harness: the second waits for its turn, and need not run any more."""
    wanted = kit.request(kit.candidate("time.sleep(0.01)  # twice"), fresh=False)
    first, second = kit.Running(shared, wanted), kit.Running(shared, wanted)
    reports = sorted((first.result(), second.result()), key=lambda report: report.identical_to)
    assert [report.identical_to for report in reports] == ["", reports[0].attempt_id]
    assert reports[1].attempt_id not in ("", reports[0].attempt_id)
    ran, answered = reports
    assert answered.model_copy(update={"identical_to": "", "attempt_id": ran.attempt_id}) == ran
    for report in reports:
        assert shared.journal.read(report.attempt_id)[1] == report
    again = shared.validate(wanted)
    assert again.identical_to == ran.attempt_id


def test_who_asks_for_it_anew_is_not_answered_from_the_record(shared: Harness) -> None:
    wanted = kit.request(kit.candidate("time.sleep(0.01)  # both"), fresh=True)
    jobs = [kit.Running(shared, wanted) for _ in range(2)]
    assert [job.result().identical_to for job in jobs] == ["", ""]


def test_two_servers_at_the_same_submission_give_one_answer(settings: Settings) -> None:
    """Both may judge at the same time; who is the second to finish gives the answer of the first."""
    wanted = kit.request(kit.candidate("time.sleep(0.005)"), fresh=False)
    with Harness(settings) as one, Harness(settings) as other:
        one.warm()
        other.warm()
        jobs = [kit.Running(harness, wanted) for harness in (one, other)]
        reports = [job.result() for job in jobs]
    ran = next(report for report in reports if not report.identical_to)
    answered = next(report for report in reports if report is not ran)
    assert answered.identical_to == ran.attempt_id
    assert (answered.speed, answered.cases) == (ran.speed, ran.cases)


@pytest.mark.parametrize("outcome", [Outcome.WRONG_VALUES, Outcome.PASSED, Outcome.CANCELLED])
def test_a_contradiction_is_not_silent(settings: Settings, monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    """Another process has found it right in the meantime."""
    wanted = kit.request(fresh=False)

    def report(outcome: Outcome, **more: object) -> ValidateReport:
        return ValidateReport(op=kit.OP, level=1, outcome=outcome, blame=blame_of(outcome), **more)  # type: ignore[arg-type]

    with Harness(settings) as harness:
        there: list[str] = []

        def judged(*_: object) -> ValidateReport:
            identity = harness.identity(wanted, harness.catalog.get(kit.OP), harness.device("cpu"))
            there.append(harness.journal.begin(wanted, identity))
            harness.journal.finish(there[0], report(Outcome.PASSED, attempt_id=there[0], summary="the first"))
            return report(outcome, summary="the second")

        monkeypatch.setattr(harness, "_judged", judged)
        found = harness.validate(wanted)
        assert harness.journal.read(found.attempt_id)[1] == found
    assert found.outcome is outcome
    if outcome is Outcome.PASSED:
        assert (found.summary, found.identical_to) == ("the first", there[0])
    else:
        assert (found.summary, found.identical_to) == ("the second", "")
    assert any(there[0] in warning and "another outcome: PASSED" in warning for warning in found.warnings) == (
        outcome is Outcome.WRONG_VALUES
    )


@pytest.mark.parametrize(
    ("crowd", "word", "kept"),
    [("other work", "inconclusive", False), ("other work", "slower", True), ("", "inconclusive", True)],
)
def test_what_others_made_unclear_is_judged_anew(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, crowd: str, word: SpeedWord, kept: bool
) -> None:
    wanted = kit.request(fresh=False)
    report = ValidateReport(
        op=kit.OP,
        level=1,
        outcome=Outcome.PASSED,
        machine=Machine(device="cpu", crowd=crowd),
        speed=Speed(verdict=word, speedup=0.8),
    )
    with Harness(settings) as harness:
        monkeypatch.setattr(harness, "_judged", lambda *given: report)
        first = harness.validate(wanted)
        assert (harness.cached_report(wanted) is not None) is kept
        assert harness.validate(wanted).identical_to == (first.attempt_id if kept else "")


def test_what_makes_a_submission_another(shared: Harness) -> None:
    spec, device = shared.catalog.get(kit.OP), shared.device("cpu")

    def identity(**change: object) -> str:
        return shared.identity(kit.request(**{"source": kit.GOOD, **change}), spec, device)  # type: ignore[arg-type]

    same = identity()
    assert identity(fresh=False) == same
    assert identity(client="somebody") == same
    assert identity(path="elsewhere.py") == same
    others = [
        identity(source=kit.GOOD + "\n"),
        identity(cases="quick"),
        identity(allow=["vllm"]),
        shared.identity(kit.request(), spec.model_copy(update={"sha256": "0" * 64}), device),
        shared.identity(kit.request(), spec, device.model_copy(update={"driver": "another"})),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_a_damaged_record_is_worked_out_anew(shared: Harness) -> None:
    wanted = kit.request(kit.candidate("pass  # damaged"), fresh=False)
    first = shared.validate(wanted)
    (shared.journal.path / "reports" / first.attempt_id[2:10] / f"{first.attempt_id}.json").write_text("{")
    again = shared.validate(wanted)
    assert again.identical_to == ""
    assert kit.passed(again)


def test_an_answer_from_before_the_error_was_measured_is_not_given_again(tmp_path: Path) -> None:
    wanted = kit.request(kit.candidate("pass"), fresh=False)
    with Harness(kit.settings_at(tmp_path)) as harness:
        spec, device = harness.catalog.get(wanted.op), cpu_device()
        before = harness.identity(wanted, spec, device)
        harness.floors.keep(device, 0.05, [1.05])
        assert harness.identity(wanted, spec, device) == before, "a CPU's error is never taken to be so small"
        harness.floors.keep(device, 0.45, [1.5])
        assert harness.identity(wanted, spec, device) != before
