"""Identical submissions are answered from the record, and only those."""

from __future__ import annotations

import threading

import pytest

from fk_core.harness import Harness
from fk_core.leases.devices import cpu_device
from fk_core.leases.flock import FlockLeases
from fk_core.records.report import Outcome
from tests.harness import kit


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
