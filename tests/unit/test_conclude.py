"""What a report says of a candidate that did not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from fk_core.catalog import Catalog
from fk_core.conclude import conclude, machine
from fk_core.fault import CandidateFault
from fk_core.hearing import Hearing
from fk_core.leases.devices import cpu_device
from fk_core.records.device import Device
from fk_core.records.report import BEGUN, Outcome, ValidateRequest, blame_of
from fk_core.settings import Settings
from fk_core.source_check import Problem
from fk_core.stopping import Estimate
from fk_core.timings import CaseTiming
from fk_core.validate import rejected_text

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


def test_a_case_that_had_begun_is_not_called_one_that_was_not_reached() -> None:
    hearing = heard()
    first, second, third, *_ = hearing.reports
    hearing.reports[second] = hearing.reports[second].model_copy(update={"reason": BEGUN})
    hearing.failed(CandidateFault(Outcome.CRASHED, "why", case=first))
    assert [hearing.reports[one].outcome for one in (second, third)] == [Outcome.NOT_RUN, Outcome.NOT_RUN]
    assert hearing.reports[second].reason == f"{BEGUN}: the candidate failed before that, CRASHED"
    assert hearing.reports[third].reason == "not reached: the candidate failed before that, CRASHED"


def test_a_case_that_had_begun_when_all_ended_says_so() -> None:
    hearing = heard()
    first, second, *_ = hearing.reports
    hearing.reports[first] = hearing.reports[first].model_copy(update={"reason": BEGUN})
    hearing.ended(Outcome.CANCELLED, "why")
    assert hearing.reports[first].reason == f"{BEGUN}: the validation ended before that, CANCELLED"
    assert hearing.reports[second].reason == "not reached: the validation ended before that, CANCELLED"


@pytest.mark.parametrize(("outcome", "shown"), [(Outcome.NON_FINITE, None), (Outcome.WRONG_VALUES, 0.8)])
def test_the_error_of_the_finite_part_is_not_the_case_s(outcome: Outcome, shown: float | None) -> None:
    hearing = heard()
    fault = CandidateFault(outcome, "why", case=next(iter(hearing.reports)))
    fault.judged = {"judgement": {"max_error_ratio": 0.8, "max_abs_error": 0.8}}
    hearing.failed(fault)
    report = hearing.reports[fault.case]
    assert (report.max_error_ratio, report.max_abs_error) == (shown, shown)


def test_a_case_outside_the_domain_is_marked() -> None:
    spec = Catalog().get("softmax")
    inside, *outside = spec.cpu_cases
    hearing = Hearing(ValidateRequest(op="softmax", source="x"), spec, [inside], cpu_device(), outside=outside)
    hearing.correct()
    hearing.measured = [CaseTiming(inside, estimate=Estimate(0.0, 0.01, 12, 12), candidate_us=9.0, baseline_us=9.0)]
    report = conclude(hearing, Settings(home=Path("/h"), lock_dir=Path("/l")))
    assert [case.routed_to_baseline for case in report.cases] == [False] + [True] * len(outside)
    assert "the one case of softmax that its SUPPORTS covers (3 more are left to the baseline)" in report.summary


@pytest.mark.parametrize(
    ("floor", "crowd", "step"),
    [
        (0.2, "other work", "Submit the same source again once the machine is quiet"),
        (0.45, "", "End other work, then run `fk doctor`: the machine's own error was measured as 45%"),
        (0.2, "", ""),
    ],
)
def test_an_unclear_speed_says_what_would_make_it_clear(floor: float, crowd: str, step: str) -> None:
    hearing = heard()
    hearing.correct()
    hearing.floor, hearing.crowd, hearing.crowd_floor = floor, crowd, 0.7
    estimate = Estimate(0.1, 0.01, 12, 12)
    hearing.measured = [CaseTiming(c, estimate=estimate, candidate_us=9.0, baseline_us=10.0) for c in hearing.cases]
    steps = conclude(hearing, Settings(home=Path("/h"), lock_dir=Path("/l"))).next_steps
    assert len(steps) == bool(step)
    assert all(step in one for one in steps)


def test_a_gpu_is_told_its_error_to_the_digit_and_what_to_do_about_it() -> None:
    hearing = heard()
    hearing.device = Device(kind="cuda", uuid="GPU-0")
    hearing.correct()
    hearing.floor = 0.0142
    estimate = Estimate(0.012, 0.001, 12, 12)
    hearing.measured = [CaseTiming(c, estimate=estimate, candidate_us=99.0, baseline_us=100.0) for c in hearing.cases]
    (step,) = conclude(hearing, Settings(home=Path("/h"), lock_dir=Path("/l"))).next_steps
    assert step == (
        "End other work on the GPU, or lock its clocks, then run `fk doctor`: the machine's own error was measured as "
        "1.42%"
    )


def test_a_second_try_knows_nothing_of_the_crowd_of_the_first() -> None:
    hearing = heard()
    hearing.floor = 0.25
    hearing.crowd, hearing.crowd_floor = "other work", 0.7
    assert hearing.floor_in_use == machine(hearing, {}).floor == 0.7
    hearing.begin()
    assert (hearing.floor_in_use, hearing.crowd) == (0.25, "")
    assert (machine(hearing, {}).floor, machine(hearing, {}).crowd) == (0.25, "")


def test_the_cases_of_a_refused_file_say_that_it_was_refused() -> None:
    hearing = heard()
    report = rejected_text(hearing, [Problem(Outcome.POLICY, "why")], Settings(home=Path("/h"), lock_dir=Path("/l")))
    assert {(case.outcome, case.reason) for case in report.cases} == {
        (Outcome.NOT_RUN, "not reached: the file was refused, POLICY")
    }
