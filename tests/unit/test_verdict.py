"""The decision table, row by row. Every threshold is tried on both of its sides."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fk_core import verdict
from fk_core.records.report import CaseReport, Outcome, SpeedWord
from fk_core.records.task import CaseSpec
from fk_core.settings import Timing
from fk_core.stopping import Estimate
from fk_core.timings import CaseTiming
from fk_core.verdict import Decision, case_report, decide, resolved, summary, too_fast, word

T = Timing()


def case(name: str = "op/a", calls: int | None = 1) -> CaseSpec:
    return CaseSpec.model_construct(id=name, calls=calls)


def timing(
    ratio: float | None,
    half: float | None = 0.003,
    *,
    name: str = "op/a",
    calls: int | None = 1,
    candidate_us: float = 10.0,
    floor_us: float | None = 1.0,
    **more: Any,
) -> CaseTiming:
    """A case measured at ``ratio``; None is one that was not timed."""
    if ratio is None:
        return CaseTiming(case(name, calls), reason=more.get("reason", "no usable reading"))
    return CaseTiming(
        case(name, calls),
        mode="gate nodes",
        estimate=Estimate(math.log(ratio), half, 12, 12),
        candidate_us=candidate_us,
        baseline_us=candidate_us * ratio,
        floor_us=floor_us,
        **more,
    )


def report(name: str = "op/a", outcome: Outcome = Outcome.PASSED) -> CaseReport:
    return CaseReport(id=name, outcome=outcome)


def decided(*measured: CaseTiming, floor: float = 0.003, **more: Any) -> Decision:
    cases = more.pop("cases", [report(m.case.id) for m in measured])
    given: dict[str, Any] = {"correct": True, "gpu": True, "baseline": "vllm: its kernel", "trusted": True} | more
    return decide(cases, list(measured), T, floor, **given)


@pytest.mark.parametrize(
    ("log_ratio", "half", "floor", "wanted"),
    [
        (0.0, 0.003, 0.003, "same"),
        (0.005, 0.003, 0.003, "same"),
        (-0.005, 0.003, 0.003, "same"),
        # The interval excludes 1, yet the change is within a percent.
        (0.0095, 0.003, 0.003, "inconclusive"),
        (0.0099, 0.001, 0.0, "inconclusive"),
        (0.0101, 0.001, 0.0, "faster"),
        (-0.0101, 0.001, 0.0, "slower"),
        # More than a percent, yet an interval one and a half times as wide holds 1.
        (0.02, 0.0134, 0.0, "inconclusive"),
        (0.02, 0.0132, 0.0, "faster"),
        (-0.02, 0.0134, 0.0, "inconclusive"),
        (-0.02, 0.0132, 0.0, "slower"),
        (0.0102, 0.0096, 0.0, "inconclusive"),  # read on an H200 of a kernel against itself
        # The floor is what decides: alone, in quadrature, and above the percent.
        (0.02, 0.01, 0.0135, "inconclusive"),
        (0.02, 0.01, 0.013, "faster"),
        (0.025, 0.001, 0.03, "inconclusive"),
        (0.0299, 0.0, 0.03, "inconclusive"),
        (0.0301, 0.0, 0.03, "faster"),
        (-0.0301, 0.0, 0.03, "slower"),
        (0.0, 0.0, 0.03, "inconclusive"),
        (0.0, 0.0, 0.0099, "same"),
        (0.0, 0.0, 0.0102, "inconclusive"),
        (0.0, 0.02, 0.0, "inconclusive"),
        (0.3, None, 0.0, "inconclusive"),
        (-0.3, None, 0.0, "inconclusive"),
    ],
)
def test_words(log_ratio: float, half: float | None, floor: float, wanted: SpeedWord) -> None:
    assert word(Estimate(log_ratio, half, 12, 12), T, floor) == wanted


@pytest.mark.parametrize(
    ("log_ratio", "us", "wanted"),
    [
        (-0.0155, 1.03, "inconclusive"),  # read on an H200 of a kernel against itself
        (0.019, 1.0, "inconclusive"),
        (0.021, 1.0, "faster"),
        (-0.021, 1.0, "slower"),
        (0.011, 1.9, "faster"),
        (0.011, 50.0, "faster"),
        (0.011, None, "faster"),
        (0.0, 0.5, "same"),
    ],
)
def test_a_short_call_is_resolved_to_so_many_nanoseconds(log_ratio: float, us: float | None, wanted: SpeedWord) -> None:
    assert T.resolution_us == 0.02
    assert word(Estimate(log_ratio, 0.001, 12, 12), T, 0.003, resolved(T, us)) == wanted


def test_of_an_operator_less_is_resolved_the_more_cases_it_has() -> None:
    assert resolved(T, 1.0) == pytest.approx(0.02)
    assert resolved(T, 1.0, 1.0, 1.0, 1.0) == pytest.approx(0.01)
    assert resolved(T, 1.0, 100.0, None, None) == pytest.approx(0.005, rel=1e-3)
    assert resolved(T) == resolved(T, None) == 0.0


def test_a_change_that_is_not_resolved_has_a_reason() -> None:
    measured = timing(1.015, 0.001, candidate_us=1.0)
    found = case_report(report(), measured, T, 0.003)
    assert found.verdict == "inconclusive"
    assert "20 ns" in found.reason


@pytest.mark.parametrize(
    ("ratio", "half", "floor", "us", "says"),
    [
        (1.1, 0.003, 0.2, 900.0, "less than about 20%"),
        (1.3, 0.1, 0.45, 900.0, "less than about 45%"),
        (0.82, 0.02, 0.213, 900.0, "less than about 21.3%"),
        (1.03, 0.05, 0.003, 900.0, "more time would tell"),
        (1.5, 0.5, 0.2, 900.0, "more time would tell"),
        (1.0, 0.02, 0.003, 900.0, "more time would tell"),
        (1.015, 0.001, 0.003, 1.0, "less than 20 ns"),
        (2.0, None, 0.2, 900.0, "too few"),
        (1.009, 0.0003, 0.003, 900.0, "can't be told from the machine's own error: with one of about 0.3%"),
        (0.991, 0.0, 0.003, 900.0, "neither surely more than 1% nor surely less"),
        (1.0, 0.02, 0.003, 1.0, "more time would tell"),
    ],
)
def test_whatever_is_inconclusive_says_why(
    ratio: float, half: float | None, floor: float, us: float, says: str
) -> None:
    measured = timing(ratio, half, candidate_us=us)
    found = case_report(report(), measured, T, floor)
    assert found.verdict == "inconclusive"
    assert says in found.reason
    speed = decided(measured, floor=floor).speed
    assert speed.verdict == "inconclusive"
    assert says in speed.reason


def test_a_crowded_machine_calls_only_what_is_twice_as_fast() -> None:
    measured, crowd = timing(1.41, 0.05, candidate_us=900.0), "other work kept 1.9 of its 2 CPUs busy"
    assert case_report(report(), measured, T, T.cpu_floor).verdict == "faster"
    found = case_report(report(), measured, T, T.crowd_floor, crowd)
    assert found.verdict == "inconclusive"
    assert found.reason == f"{crowd}, so changes of less than a factor of 2 are not called"
    speed = decided(measured, floor=T.crowd_floor, crowd=crowd).speed
    assert (speed.verdict, speed.reason) == ("inconclusive", found.reason)
    assert case_report(report(), timing(2.2, 0.05, candidate_us=900.0), T, T.crowd_floor, crowd).verdict == "faster"


def test_more_time_never_rounds_up() -> None:
    """Widening an interval may take a word away, never give another one."""
    for log_ratio in (-0.05, -0.012, 0.0, 0.004, 0.012, 0.05):
        words = [word(Estimate(log_ratio, half / 1000, 12, 12), T, 0.002) for half in range(0, 80)]
        changes = [w for n, w in enumerate(words) if n == 0 or w != words[n - 1]]
        assert changes in ([words[0], "inconclusive"], ["inconclusive"], [words[0]]), (log_ratio, changes)


def test_a_timed_case() -> None:
    plain, eager = Estimate(math.log(1.05), None, 4, 4), Estimate(math.log(0.8), None, 8, 8)
    measured = timing(1.2, name="op/a", calls=64, stopped_because="narrow", plain=plain, eager=eager)
    found = case_report(report(), measured, T, 0.004)
    assert found.verdict == "faster"
    assert found.speedup == pytest.approx(1.2)
    assert found.ci95 == pytest.approx((1.2 * math.exp(-0.005), 1.2 * math.exp(0.005)))
    assert (found.candidate_us, found.baseline_us, found.floor_us) == (10.0, pytest.approx(12.0), 1.0)
    assert (found.calls, found.rounds, found.stopped_because, found.reason) == (64, 12, "narrow", "")
    assert found.all_cold_speedup == pytest.approx(1.05)
    assert found.eager_speedup == pytest.approx(0.8)


def test_a_case_that_was_not_timed_says_why() -> None:
    found = case_report(report(), timing(None, reason="the clock is too coarse"), T, 0.003)
    assert (found.verdict, found.reason) == ("not_timed", "the clock is too coarse")
    assert (found.speedup, found.ci95, found.candidate_us) == (None, None, None)
    silent = case_report(report(), CaseTiming(case()), T, 0.003)
    assert (silent.verdict, silent.reason) == ("not_timed", "not timed")


@pytest.mark.parametrize(
    ("candidate_us", "floor_us", "ratio", "wanted"),
    [
        (8.9, 10.0, 1.5, True),
        (9.1, 10.0, 1.5, False),
        (8.9, 10.0, 0.9, False),  # slow and below the floor: the floor is off, nobody gains
        (8.9, None, 1.5, False),
        (-1.0, 10.0, 1.5, True),
    ],
)
def test_faster_than_the_hardware(candidate_us: float, floor_us: float | None, ratio: float, wanted: bool) -> None:
    measured = timing(ratio, candidate_us=candidate_us, floor_us=floor_us)
    assert too_fast(measured) is wanted
    found = case_report(report(), measured, T, 0.003)
    assert (found.verdict == "inconclusive") is wanted
    assert ("not believed" in found.reason) is wanted


def test_one_unbelievable_case_is_no_speed_of_the_operator() -> None:
    found = decided(timing(1.3, name="op/a"), timing(2.0, name="op/b", candidate_us=0.5, floor_us=1.0))
    assert not found.winner
    assert "faster than the hardware allows" in found.winner_reason
    assert "op/b" in found.winner_reason
    assert found.speed.verdict == "inconclusive"
    assert "op/b" in found.speed.reason
    assert "faster" not in summary("op", Outcome.PASSED, "", found, 2)


def test_the_operator_is_the_geometric_mean() -> None:
    found = decided(timing(2.0, 0.003, name="op/a"), timing(0.98, 0.004, name="op/b"), floor=0.0)
    assert found.speed.speedup == pytest.approx(1.4)
    assert found.speed.ci95 == pytest.approx((1.4 * math.exp(-0.0025), 1.4 * math.exp(0.0025)))
    assert found.speed.verdict == "faster"
    assert (found.speed.worst_case, found.speed.worst_speedup) == ("op/b", pytest.approx(0.98))
    assert (found.speed.mode, found.speed.baseline) == ("gate nodes", "vllm: its kernel")
    assert found.winner
    assert found.winner_reason == ""


def test_weights_and_predicted_gain() -> None:
    a = timing(2.0, name="op/a", calls=10, candidate_us=5.0)
    b = timing(0.5, name="op/b", calls=2, candidate_us=20.0)
    uncounted = timing(3.0, name="op/c", calls=None, candidate_us=7.0)
    found = decided(a, b, uncounted).speed
    # 10 calls of 10 us and 2 of 10 us became 10 of 5 us and 2 of 20 us.
    assert found.weighted_speedup == pytest.approx(120 / 90)
    assert found.predicted_model_gain == pytest.approx(30.0)
    alone = decided(uncounted).speed
    assert (alone.weighted_speedup, alone.predicted_model_gain) == (None, None)


@pytest.mark.parametrize(
    ("low", "floor", "wins"),
    [(1.0051, 0.001, True), (1.0049, 0.001, False), (1.0201, 0.02, True), (1.0199, 0.02, False)],
)
def test_the_lower_end_has_to_clear_the_bar(low: float, floor: float, wins: bool) -> None:
    # The half-width is chosen so that floor and it together put the lower end at ``low``.
    half = math.hypot(0.004, floor)
    found = decided(timing(low * math.exp(half), 0.004), floor=floor)
    assert found.speed.ci95 is not None
    assert found.speed.ci95[0] == pytest.approx(low)
    assert found.winner is wins
    assert ("lower end" in found.winner_reason) is not wins


@pytest.mark.parametrize(("ratio", "half", "wins"), [(0.95, 0.005, False), (0.965, 0.001, False), (0.969, 0.003, True)])
def test_one_significantly_slow_case_loses(ratio: float, half: float, wins: bool) -> None:
    found = decided(timing(1.5, name="op/a"), timing(ratio, half, name="op/b"), floor=0.0)
    assert found.winner is wins
    assert ("op/b is significantly slower" in found.winner_reason) is not wins


def test_only_correct_ones_win() -> None:
    wrong = decided(timing(1.5), correct=False)
    assert (wrong.winner, wrong.winner_reason, wrong.seed_gate) == (False, "not correct on every case", False)
    missed = decided(timing(1.5), cases=[report(), report("op/b", Outcome.NOT_RUN)])
    assert (missed.winner, missed.winner_reason) == (False, "not correct on every case")


def test_calls_that_are_not_captured_make_no_winner() -> None:
    """Refusing capture must not pay: eager turns are checked by one output each."""
    eager = timing(1.5)
    eager.mode = "eager"
    found = decided(eager)
    assert not found.winner
    assert "CUDA graph" in found.winner_reason
    assert decided(timing(1.5)).winner


def test_a_cpu_never_wins() -> None:
    found = decided(timing(3.0, 0.0), gpu=False, floor=0.0)
    assert not found.winner
    assert "CPU" in found.winner_reason
    assert found.seed_gate is True
    assert found.speed.verdict == "faster"
    assert found.speed.trust == "indicative"
    assert "indicative" in summary("op", Outcome.PASSED, "", found, 1)


@pytest.mark.parametrize(("ratio", "gate"), [(1.0, True), (1.0001, True), (0.9999, False), (2.0, True)])
def test_the_older_gate(ratio: float, gate: bool) -> None:
    assert decided(timing(ratio)).seed_gate is gate


@pytest.mark.parametrize(("gpu", "trusted", "trust"), [(True, True, "full"), (True, False, "indicative")])
def test_trust(gpu: bool, trusted: bool, trust: str) -> None:
    assert decided(timing(1.0), gpu=gpu, trusted=trusted).speed.trust == trust


def test_the_baseline_itself_never_wins() -> None:
    for seed_ratio in (0.997, 1.0, 1.003):
        found = decided(timing(seed_ratio, 0.002, name="op/a"), timing(2 - seed_ratio, 0.002, name="op/b"))
        assert not found.winner
        assert found.speed.verdict == "same"


def test_not_timed_at_all() -> None:
    found = decided(timing(None, reason="no clock"), timing(None, name="op/b"))
    assert (found.speed.verdict, found.speed.reason) == ("not_timed", "no clock")
    assert (found.winner, found.winner_reason, found.seed_gate) == (False, "no clock", None)
    assert "not timed: no clock" in summary("op", Outcome.PASSED, "", found, 2)
    assert decided(timing(None), correct=False).winner_reason == "not correct"
    assert decided().speed.reason == "no case was timed"


def test_partly_timed_is_inconclusive() -> None:
    found = decided(timing(2.0, name="op/a"), timing(None, name="op/b"))
    assert found.speed.verdict == "inconclusive"
    assert found.speed.reason == "1 case could not be timed"
    assert (found.winner, found.winner_reason) == (False, "1 case could not be timed")
    more = decided(timing(2.0, name="op/a"), timing(None, name="op/b"), timing(None, name="op/c"))
    assert more.speed.reason == "2 cases could not be timed"


def test_a_case_without_an_interval_wins_nothing() -> None:
    found = decided(timing(2.0, name="op/a"), timing(2.0, None, name="op/b"))
    assert found.speed.verdict == "inconclusive"
    assert found.speed.ci95 is None
    assert not found.winner
    assert "unknown" in found.winner_reason


@pytest.mark.parametrize(
    ("ratio", "half", "said"),
    [(1.2, 0.003, "1.200x"), (1.2, 0.003, "faster; winner"), (1.0, 0.003, "no significant change"),
     (1.03, 0.05, "inconclusive"), (0.9, 0.003, "slower")],
)  # fmt: skip
def test_the_summary(ratio: float, half: float, said: str) -> None:
    text = summary("op", Outcome.PASSED, "", decided(timing(ratio, half)), 1)
    assert said in text
    assert text.startswith("PASSED: correct on the one case of op")


def test_the_summary_counts_in_words_that_fit() -> None:
    found = decided(timing(1.2))
    assert summary("op", Outcome.PASSED, "", found, 2).startswith("PASSED: correct on all 2 cases of op; ")
    assert "the one case of op that its SUPPORTS covers (1 more is left" in summary(
        "op", Outcome.PASSED, "", found, 1, 1
    )
    assert "all 3 cases of op that its SUPPORTS covers (2 more are left" in summary(
        "op", Outcome.PASSED, "", found, 3, 2
    )


def test_more_time_is_advised_only_where_it_would_tell() -> None:
    """Whatever the interval: if the narrowest one is unclear, too, nobody is told to measure longer."""
    for log_ratio in (-0.05, -0.011, -0.009, 0.0, 0.004, 0.009, 0.0105, 0.05):
        for floor in (0.002, 0.005, 0.009, 0.02):
            for least in (0.0, 0.02):
                narrowest = word(Estimate(log_ratio, 0.0, 12, 12), T, floor, least)
                for half in (0.0003, 0.003, 0.03, 0.3):
                    estimate = Estimate(log_ratio, half, 12, 12)
                    if word(estimate, T, floor, least) == "inconclusive":
                        said = verdict.unclear(estimate, T, floor, least)
                        assert ("more time" in said) is (narrowest != "inconclusive"), (log_ratio, floor, least, half)


def test_the_summary_of_a_failure() -> None:
    assert summary("op", Outcome.WRONG_VALUES, "first line\nsecond", None, 3) == "WRONG_VALUES: first line"
    assert summary("op", Outcome.CRASHED, "", None, 3) == "CRASHED: "
    assert summary("op", Outcome.PASSED, "", None, 3).endswith("not timed: timing was not reached")
    assert len(summary("op", Outcome.CRASHED, "x" * 5000, None, 3)) == 600


PLANTED: dict[str, dict[str, Any]] = {
    "the percent is forgotten": {"changed": 0.0},
    "same is too wide": {"same": 0.05},
    "the bar is lower": {"win": -0.05},
    "slow cases are allowed": {"slow_case": 0.5},
}


@pytest.mark.parametrize("fault", PLANTED)
def test_faults_in_the_constants_would_show(fault: str) -> None:
    """Each constant decides something in this file: with a wrong one the same inputs give other words."""
    broken = Timing(**PLANTED[fault])
    inputs = [(0.0095, 0.003), (0.02, 0.025), (0.003, 0.003)]

    def answers(t: Timing) -> list[object]:
        words: list[object] = [word(Estimate(x, h, 12, 12), t, 0.003) for x, h in inputs]
        for pair in ((1.003, 1.003), (1.5, 0.95)):
            measured = [timing(r, 0.001, name=f"op/{n}") for n, r in enumerate(pair)]
            cases = [report(m.case.id) for m in measured]
            found = decide(cases, measured, t, 0.0, correct=True, gpu=True, baseline="b", trusted=True)
            words.append(found.winner)
        return words

    assert answers(broken) != answers(T)
    assert verdict.PHYSICS == 0.9
