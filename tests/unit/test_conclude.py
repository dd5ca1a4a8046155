"""What a report says of a candidate that did not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from fk_core.catalog import Catalog
from fk_core.conclude import conclude
from fk_core.fault import CandidateFault
from fk_core.hearing import Hearing
from fk_core.leases.devices import cpu_device
from fk_core.records.report import Outcome, ValidateRequest, blame_of
from fk_core.settings import Settings

COMPARED = {Outcome.WRONG_SHAPE, Outcome.WRONG_DTYPE, Outcome.WRONG_VALUES, Outcome.NON_FINITE, Outcome.MUTATED}
OTHERS = sorted(set(Outcome) - COMPARED - {Outcome.PASSED, Outcome.NOT_RUN})


def heard() -> Hearing:
    spec = Catalog().get("softmax")
    return Hearing(ValidateRequest(op="softmax", source="x"), spec, spec.cpu_cases, cpu_device())


def end(hearing: Hearing, outcome: Outcome) -> None:
    if blame_of(outcome) == "candidate":
        hearing.failed(CandidateFault(outcome, "why"))
    else:
        hearing.ended(outcome, "why")


def said(hearing: Hearing) -> str:
    report = conclude(hearing, Settings(home=Path("/h"), lock_dir=Path("/l")))
    assert not report.winner
    assert not report.correct
    return report.winner_reason


@pytest.mark.parametrize("outcome", sorted(COMPARED))
def test_values_that_were_compared_are_not_correct(outcome: Outcome) -> None:
    hearing = heard()
    end(hearing, outcome)
    assert said(hearing) == "not correct"


@pytest.mark.parametrize("outcome", OTHERS)
def test_what_was_not_compared_is_not_called_wrong(outcome: Outcome) -> None:
    hearing = heard()
    end(hearing, outcome)
    assert said(hearing) == f"correctness was not judged to the end: {outcome.value}"


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.CONTENDED, Outcome.GPU_FAULT, Outcome.CRASHED])
def test_a_candidate_that_was_found_correct_was_not_timed(outcome: Outcome) -> None:
    hearing = heard()
    hearing.correct()
    end(hearing, outcome)
    assert said(hearing) == f"not timed to the end: {outcome.value}"


@pytest.mark.parametrize("outcome", sorted(outcome for outcome in Outcome if blame_of(outcome) == "candidate"))
def test_every_failure_of_a_candidate_has_a_next_step(outcome: Outcome) -> None:
    hearing = heard()
    end(hearing, outcome)
    assert conclude(hearing, Settings(home=Path("/h"), lock_dir=Path("/l"))).next_steps


def test_what_an_exception_said_is_in_the_log() -> None:
    hearing = heard()
    hearing.log_tail = "printed"
    reason = "importing the file raised X: one ... two\none\nerror: y\x1b[2J\ntwo"
    hearing.failed(CandidateFault(Outcome.BUILD_FAILED, reason))
    report = conclude(hearing, Settings(home=Path("/h"), lock_dir=Path("/l")))
    assert report.summary == "BUILD_FAILED: importing the file raised X: one ... two"
    assert report.log_tail == "one\nerror: y\ntwo\nprinted"
