"""Cancelling at any instant: gone soon, said so, and the next job finds everything in order."""

from __future__ import annotations

import random
import threading

import pytest

from fk_core.harness import Harness
from fk_core.records.report import Outcome
from tests.harness import kit

SOON_S = 4.0
"""A generous bound on a busy machine; two seconds are promised."""


@pytest.mark.timeout(60 + 20 * kit.INSTANTS)
def test_at_random_instants(shared: Harness, dice: random.Random) -> None:
    judge = kit.pid_of(shared.settings, "judge")
    for _ in range(kit.INSTANTS):
        job = kit.Running(shared, kit.request(kit.SLOW))
        assert job.began()
        kit.pause(dice, 1.5)
        job.cancel.set()
        report = job.result(SOON_S)
        assert report.outcome is Outcome.CANCELLED or kit.passed(report), report.summary
        assert report.blame in ("caller", None)
        assert kit.within(lambda: not kit.pid_of(shared.settings, "candidate"), 2.0)
        assert kit.lease_is_free(shared.settings)
        assert kit.scratch_left(shared.settings) == []
    assert kit.passed(shared.validate(kit.request()))
    assert kit.pid_of(shared.settings, "judge") == judge, "the judge had to be replaced"


@pytest.mark.parametrize("body", ["time.sleep(1000)", "while True: pass", "ctypes.CDLL(None).sleep(1000)"])
def test_in_a_call_that_does_not_end(shared: Harness, body: str) -> None:
    job = kit.Running(shared, kit.request(kit.candidate(body)))
    assert kit.within(lambda: any(doing.startswith("correctness") for doing in job.doing), 30.0)
    job.cancel.set()
    assert job.result(SOON_S).outcome is Outcome.CANCELLED
    assert not kit.pid_of(shared.settings, "candidate")
    assert kit.passed(shared.validate(kit.request()))


def test_in_an_import_that_does_not_end(shared: Harness) -> None:
    job = kit.Running(shared, kit.request(kit.candidate(top="time.sleep(1000)")))
    assert kit.within(lambda: kit.pid_of(shared.settings, "candidate") != 0, 30.0)
    job.cancel.set()
    assert job.result(SOON_S).outcome is Outcome.CANCELLED
    assert kit.passed(shared.validate(kit.request()))


def test_before_it_begins(shared: Harness) -> None:
    cancel = threading.Event()
    cancel.set()
    report = shared.validate(kit.request(), cancel=cancel)
    assert report.outcome is Outcome.CANCELLED
    assert report.blame == "caller"
    assert [case.outcome for case in report.cases] == [Outcome.NOT_RUN]


def test_while_another_has_the_judge(shared: Harness) -> None:
    first = kit.Running(shared, kit.request(kit.candidate("time.sleep(0.03)")))
    assert kit.within(lambda: "building" in first.doing, 30.0)
    second = kit.Running(shared, kit.request())
    assert kit.within(lambda: "waiting: 1 job is ahead" in second.doing, 30.0)
    second.cancel.set()
    assert second.result(SOON_S).outcome is Outcome.CANCELLED
    assert first.alive()
    assert kit.passed(first.result())


def test_while_another_process_has_the_device(shared: Harness) -> None:
    from fk_core.leases.devices import cpu_device
    from fk_core.leases.flock import FlockLeases

    with FlockLeases(shared.settings).acquire(cpu_device(), "exclusive", purpose="somebody else"):
        job = kit.Running(shared, kit.request())
        assert kit.within(lambda: any("somebody else" in doing for doing in job.doing), 30.0)
        job.cancel.set()
        assert job.result(SOON_S).outcome is Outcome.CANCELLED


def test_closing_the_harness_ends_a_job(harness: Harness) -> None:
    job = kit.Running(harness, kit.request(kit.candidate("time.sleep(1000)")))
    assert kit.within(lambda: any(doing.startswith("correctness") for doing in job.doing), 60.0)
    harness.close()
    report = job.result(10.0)
    assert report.outcome is Outcome.CANCELLED, report.summary
    assert "closed" in report.summary
    assert kit.lease_is_free(harness.settings)
