"""The decision table: pure functions from what was measured to words. No process, no clock, no file.

The constants come from ``settings.Timing``; the evidence for each stands in docs/measurements.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fk_core import stopping
from fk_core.records.report import CaseReport, Outcome, Speed, SpeedWord
from fk_core.settings import Timing
from fk_core.stopping import Estimate
from fk_core.timings import CaseTiming

PHYSICS = 0.9
"""A time below this share of the floor is not believed."""


def word(estimate: Estimate, timing: Timing, floor: float, least: float = 0.0) -> SpeedWord:
    """faster, slower, same or inconclusive, for one case or for an operator. ``least``: see :func:`resolved`."""
    interval = estimate.interval(floor)
    if interval is None or estimate.half_width is None:
        return "inconclusive"
    low, high = interval
    clear = math.hypot(timing.sure * estimate.half_width, floor)
    if abs(estimate.log_ratio) > max(timing.changed, floor, least, clear):
        return "faster" if estimate.log_ratio > 0 else "slower"
    if low >= 1 - timing.same and high <= 1 + timing.same:
        return "same"
    return "inconclusive"


def unclear(estimate: Estimate, timing: Timing, floor: float, least: float = 0.0, crowd: str = "") -> str:
    """Why :func:`word` says inconclusive. ``crowd`` says what makes the floor larger than the machine's own.

    More time makes the interval narrower and nothing else, so it is named only where the narrowest one would do. Cases
    that are unclear for the same reason get the same text, so that they can be told together.
    """
    if estimate.half_width is None:
        return "too few rounds or layouts for an interval"
    if word(replace(estimate, half_width=0.0), timing, floor, least) != "inconclusive":
        return "the interval is too wide for so small a change: more time would tell"
    if max(timing.changed, floor, least) == least and abs(estimate.log_ratio) <= least:
        return (
            f"the calls are short, and changes of less than {1e3 * timing.resolution_us:.0f} ns a call can't be told "
            "from the machine's own error"
        )
    if crowd:
        return f"{crowd}, so changes of less than a factor of {math.exp(floor):.2g} are not called"
    if abs(estimate.log_ratio) <= floor:
        return f"changes of less than about {100 * floor:.3g}% can't be told from the machine's own error"
    return (
        f"so small a change can't be told from the machine's own error: with one of about {100 * floor:.2g}% it is "
        f"neither surely more than {timing.changed:.0%} nor surely less"
    )


def resolved(timing: Timing, *us: float | None) -> float:
    """The least change of the geometric mean of cases whose calls take so long that can be told from the machine's own
    error, as a fraction: each case has an error of its own."""
    return math.hypot(*(timing.resolution_us / one for one in us if one)) / max(1, len(us))


def case_report(report: CaseReport, measured: CaseTiming, timing: Timing, floor: float, crowd: str = "") -> CaseReport:
    """Add what was measured to a case that was correct."""
    estimate = measured.estimate
    update: dict[str, object] = {
        "floor_us": measured.floor_us,
        "stopped_because": measured.stopped_because,
        "calls": measured.case.calls,
    }
    if measured.plain is not None:
        update["all_cold_speedup"] = measured.plain.ratio
    if measured.eager is not None:
        update["eager_speedup"] = measured.eager.ratio
    if estimate is None:
        return report.model_copy(update={**update, "verdict": "not_timed", "reason": measured.reason or "not timed"})
    least = resolved(timing, measured.baseline_us)
    verdict = word(estimate, timing, floor, least)
    reason = unclear(estimate, timing, floor, least, crowd) if verdict == "inconclusive" else ""
    if too_fast(measured):
        verdict = "inconclusive"
        reason = (
            f"{measured.candidate_us:.3g} us is less than the hardware needs for this call "
            f"({measured.floor_us:.3g} us), so the time is not believed"
        )
    return report.model_copy(
        update={
            **update,
            "candidate_us": measured.candidate_us,
            "baseline_us": measured.baseline_us,
            "verdict": verdict,
            "reason": reason,
            "speedup": estimate.ratio,
            "ci95": estimate.interval(floor),
            "rounds": estimate.rounds,
        }
    )


def too_fast(measured: CaseTiming) -> bool:
    return (
        measured.floor_us is not None
        and measured.candidate_us is not None
        and measured.candidate_us < PHYSICS * measured.floor_us
        and (measured.estimate is not None and measured.estimate.log_ratio > 0)
    )


@dataclass(frozen=True)
class Decision:
    speed: Speed
    winner: bool
    winner_reason: str
    seed_gate: bool | None


def decide(
    cases: list[CaseReport],
    measured: list[CaseTiming],
    timing: Timing,
    floor: float,
    *,
    correct: bool,
    gpu: bool,
    baseline: str,
    trusted: bool,
    outside: int = 0,
    crowd: str = "",
) -> Decision:
    """Speed of the whole operator, and whether it wins. ``outside``: cases that the baseline takes, at 1.00 each."""
    timed = [m for m in measured if m.estimate is not None]
    if not timed:
        why = next((m.reason for m in measured if m.reason), "no case was timed")
        return Decision(Speed(reason=why, baseline=baseline), False, why if correct else "not correct", None)
    estimates = [m.estimate for m in timed if m.estimate is not None]
    taken = Estimate(0.0, 0.0, 0, min(e.layouts for e in estimates))
    total = stopping.combine(estimates + [taken] * outside)
    interval = total.interval(floor)
    worst = min(timed, key=lambda m: m.estimate.log_ratio if m.estimate else 0.0)
    # Where the baseline takes some cases their times are not known, and neither is the weighted whole.
    weights = [] if outside else [m for m in timed if m.case.calls and m.candidate_us and m.baseline_us]
    weighted = gain = None
    if weights:
        theirs = sum((m.case.calls or 0) * (m.baseline_us or 0.0) for m in weights)
        ours = sum((m.case.calls or 0) * (m.candidate_us or 0.0) for m in weights)
        weighted, gain = theirs / ours, theirs - ours
    reason = ""
    unbelieved = [m.case.id for m in timed if too_fast(m)]
    if len(timed) < len(measured):
        missing = len(measured) - len(timed)
        reason = f"{missing} case{'' if missing == 1 else 's'} could not be timed"
    elif unbelieved:
        reason = f"faster than the hardware allows, so not believed: {', '.join(unbelieved[:3])}"
    least = resolved(timing, *(m.baseline_us for m in timed), *[None] * outside)
    verdict: SpeedWord = "inconclusive" if reason else word(total, timing, floor, least)
    if verdict == "inconclusive" and not reason:
        reason = unclear(total, timing, floor, least, crowd)
    speed = Speed(
        verdict=verdict,
        reason=reason,
        speedup=total.ratio,
        ci95=interval,
        weighted_speedup=weighted,
        worst_case=worst.case.id,
        worst_speedup=worst.estimate.ratio if worst.estimate else None,
        predicted_model_gain=gain,
        baseline=baseline,
        mode=", ".join(dict.fromkeys(m.mode for m in timed)),
        trust="full" if gpu and trusted else "indicative",
    )
    seed_gate = correct and total.ratio >= 1.0
    why_not = _why_no_winner(cases, timed, interval, timing, floor, correct=correct, gpu=gpu)
    if not why_not and len(timed) < len(measured):
        why_not = reason
    return Decision(speed, not why_not, why_not, seed_gate)


def _why_no_winner(
    cases: list[CaseReport],
    timed: list[CaseTiming],
    interval: tuple[float, float] | None,
    timing: Timing,
    floor: float,
    *,
    correct: bool,
    gpu: bool,
) -> str:
    if not correct or any(c.outcome is not Outcome.PASSED for c in cases):
        return "not correct on every case"
    if not gpu:
        return "timed on a CPU: only a GPU can make a winner"
    needed = 1 + max(timing.win, floor)
    if interval is None or interval[0] <= needed:
        low = "unknown" if interval is None else f"{interval[0]:.4f}"
        return f"the lower end of the geometric mean's interval is {low}; it has to be above {needed:.4f}"
    eager = next((m for m in timed if m.mode == "eager"), None)
    if eager is not None:
        return f"{eager.case.id} can't be captured in a CUDA graph: timed call by call, which makes no winner"
    fast = next((m for m in timed if too_fast(m)), None)
    if fast is not None:
        return f"{fast.case.id} is faster than the hardware allows"
    for m in timed:
        if m.estimate is None:
            continue
        ends = m.estimate.interval(floor)
        if (
            ends is not None
            and ends[1] < timing.slow_case
            and word(m.estimate, timing, floor, resolved(timing, m.baseline_us)) == "slower"
        ):
            return f"{m.case.id} is significantly slower ({times(m.estimate.ratio)})"
    return ""


def times(ratio: float, interval: tuple[float, float] | None = None) -> str:
    """A speedup as people read it, as exact as its interval; one in Triton's interpreter may be far below 0.001."""
    if interval is not None:
        return f"{ratio:.{_decimals(*interval)}f}x"
    return f"{ratio:.3f}x" if ratio >= 0.1 else f"{ratio:.3g}x"


def between(low: float, high: float) -> str:
    """An interval of speedups, with as many decimals as show how narrow it is."""
    decimals = _decimals(low, high)
    return f"{low:.{decimals}f} to {high:.{decimals}f}"


def _decimals(low: float, high: float) -> int:
    """At least three, and two digits of the interval's width."""
    width = high - low
    return 3 if not 0 < width < math.inf else min(9, max(3, 2 - math.ceil(math.log10(width))))


def summary(
    op: str, outcome: Outcome, reason: str, decision: Decision | None, total_cases: int, outside: int = 0
) -> str:
    """One or two sentences that answer: is it right, is it faster. ``outside``: cases that the baseline takes."""
    if outcome is not Outcome.PASSED:
        return f"{outcome.value}: {reason.splitlines()[0] if reason else ''}"[:600]
    head = f"PASSED: correct on {'the one case' if total_cases == 1 else f'all {total_cases} cases'} of {op}"
    if outside:
        head += f" that its SUPPORTS covers ({outside} more {'is' if outside == 1 else 'are'} left to the baseline)"
    if decision is None or decision.speed.speedup is None:
        return f"{head}; not timed: {decision.speed.reason if decision else 'timing was not reached'}"
    s = decision.speed
    ci = f" (95% interval {between(*s.ci95)})" if s.ci95 else ""
    words = {"same": "no significant change", "inconclusive": "inconclusive"}
    said = words.get(s.verdict, s.verdict)
    note = "; times are indicative" if s.trust == "indicative" else ""
    win = "; winner" if decision.winner else ""
    return f"{head}; {times(s.speedup or 0.0, s.ci95)} against {s.baseline}{ci}: {said}{win}{note}"
