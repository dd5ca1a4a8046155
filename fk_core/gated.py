"""Timing one case by its captured graphs, gates between the calls: whose turn it is, when to stop, who is believed."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

from fk_core import stopping
from fk_core.eager import abba
from fk_core.judge_session import JudgeSession
from fk_core.prepared import LONG, PRIME, TIMED, Prepared, forged, turn_order
from fk_core.records.claims import GatedTurn, PlainTurn
from fk_core.settings import Timing
from fk_core.stopping import Estimate
from fk_core.timings import CaseTiming
from fk_core.trial import Trial

_USABLE = 0.8
"""Share of the rounds that must have given a positive time for both sides: dropping more would select the good ones."""
_PATIENCE = 3
_GATE_SHARE = 0.02
"""How far a candidate's gate may read from the baseline's: the same kernel over the same bytes in another process."""
_SLACK_US, _LONG_SLACK_US = 60.0, 150.0
"""Difference of two processes' own overheads in a turn that means nothing: 111 us at the most was seen on an H200. In
long turns it is a smaller part of a call, so that more of it can be allowed."""


@dataclass(frozen=True)
class _Turn:
    """Microseconds a call that one gated turn claims, and what this process's clock saw beyond them."""

    full: float
    gate: float
    wall: float
    calls: int
    """Of all batches."""

    def believed(self, gate: float) -> float:
        """The gate's reading, as far as the baseline's own gates bear it out."""
        return min(max(self.gate, gate * (1 - _GATE_SHARE)), gate * (1 + _GATE_SHARE))

    def op(self, gate: float) -> float:
        """Time of the call itself."""
        return self.full - self.believed(gate)

    def unexplained(self, gate: float) -> float:
        """What the clock saw beyond the readings: flushes, launches, the way there and back, and what was hidden."""
        return self.wall - self.full - self.believed(gate)


@dataclass(frozen=True)
class _Round:
    layout: int
    candidate: list[_Turn]
    baseline: list[_Turn]


class GatedTimer:
    """Times one prepared case."""

    def __init__(self, trial: Trial, judge: JudgeSession, t: Timing, floor: float, p: Prepared) -> None:
        self.trial, self.judge, self.t, self.floor, self.p = trial, judge, t, floor, p
        self.random = trial.random

    def run(self) -> None:
        """Take rounds until the interval is narrow or the budget spent; leaves what it found in the case's timing."""
        timing = self.p.timing
        timing.mode = "gate nodes"
        for side in ("candidate", "baseline"):
            self._gated(side, 0, TIMED)  # not counted: the device wakes up
        rounds = self._rounds(TIMED)
        gap = _gap_us(rounds, self.t, _SLACK_US)
        if gap:
            # Something held one side up, maybe not the candidate: only what is seen again is its doing, and what grows
            # with the number of batches.
            timing.notes.append(f"the clock outside saw {gap:.2f} us a call more than the first rounds: taken again")
            rounds = self._rounds(LONG)
            gap = _gap_us(rounds, self.t, _LONG_SLACK_US)
        self._conclude(timing, rounds, gap)
        timing.plain = self._plain()

    def _rounds(self, timed: int) -> list[_Round]:
        """Rounds of turns with so many timed batches."""
        p = self.p
        began = time.monotonic()
        count = len(p.layouts)
        theirs, ours = self._draws(count), self._draws(count)
        rounds: list[_Round] = []
        while True:
            n = len(rounds)
            pair = {"candidate": theirs[n % count], "baseline": ours[n % count]}
            turns: dict[str, list[_Turn]] = {"candidate": [], "baseline": []}
            for side in abba(self.random):
                turns[side].append(self._gated(side, pair[side], timed))
            rounds.append(_Round(n % count, turns["candidate"], turns["baseline"]))
            stop = self._stop(_ratios(rounds), len(rounds), time.monotonic() - began)
            if stop:
                p.timing.stopped_because = stop
                return rounds

    def _draws(self, count: int) -> list[int]:
        return self.random.sample(range(count), count)

    def _stop(self, rounds: list[tuple[int, float]], tried: int, spent_s: float) -> str:
        """Why to stop, or nothing. ``rounds`` are the usable ones among those tried."""
        late = spent_s > self.t.budget_max_s
        if len(rounds) < _USABLE * tried and (late or tried >= _PATIENCE * self.t.min_rounds):
            return "too many rounds without a usable reading"
        if len(rounds) < self.t.min_rounds:
            return ""
        found = stopping.estimate(rounds, trim=self.t.trim)
        half = found.half_width
        if half is None:
            return "too few layouts"
        if late:
            return "the budget was spent"
        if (len(rounds) - self.t.min_rounds) % self.t.step_rounds:
            return ""
        if half <= max(self.t.target_half_width, 0.08 * abs(found.log_ratio)):
            return f"the interval is within {100 * half:.2f}%"
        # Not before the budget is spent: stopping on significance early would bias what is reported.
        clear = abs(found.log_ratio) > math.hypot(self.t.sure * half, self.floor)
        return "the budget was spent and the sign is clear" if spent_s > self.t.budget_s and clear else ""

    def _gated(self, side: str, layout: int, timed: int) -> _Turn:
        """One turn, and how long this process's clock saw it last."""
        p = self.p
        body = turn_order(p, layout, "gated", timed)
        began = time.perf_counter()
        if side == "candidate":
            turn = self.trial.ask(body, GatedTurn)
        else:
            turn = GatedTurn.model_validate(self.judge.ask(**body).body)
        wall_us = (time.perf_counter() - began) * 1e6
        if len(turn.full_us) != timed or len(turn.gate_us) != timed:
            raise forged("a turn answered with another number of readings than were asked", p.timing.case.id)
        calls = p.layouts[layout].calls
        full, gate = statistics.fmean(turn.full_us) / calls, statistics.fmean(turn.gate_us) / calls
        # The primed batches ran as long as the timed ones.
        ran = (PRIME + timed) * calls
        return _Turn(full, gate, wall_us / ran, ran)

    def _conclude(self, timing: CaseTiming, rounds: list[_Round], gap: float) -> None:
        usable = _ratios(rounds)
        if len(usable) < max(3.0, _USABLE * len(rounds)):
            timing.reason = "the calls are shorter than what the clock resolves"
            return
        estimate = stopping.estimate(usable, trim=self.t.trim)
        gate = _baseline_gate(rounds)
        candidate = statistics.median(t.op(gate) for r in rounds for t in r.candidate)
        baseline = statistics.median(t.op(gate) for r in rounds for t in r.baseline)
        if gap:
            # This process's clock saw more than the candidate's readings account for: the clock decides. Both sides ran
            # the same flushes and gates, so what their turns differ by is what their calls differ by.
            timing.notes.append(
                f"the outside clock saw {gap:.2f} us a call more than the candidate's readings; the clock decides"
            )
            walls = [[t.wall for r in rounds for t in side(r)] for side in (_theirs, _ours)]
            candidate = max(baseline + statistics.median(walls[0]) - statistics.median(walls[1]), candidate)
            error = 1.96 * math.hypot(*(_spread(wall) for wall in walls)) / candidate
            half = None if estimate.half_width is None else max(estimate.half_width, error)
            estimate = Estimate(math.log(baseline / candidate), half, estimate.rounds, estimate.layouts)
        timing.estimate, timing.candidate_us, timing.baseline_us = estimate, candidate, baseline

    def _plain(self) -> Estimate:
        """Plain replay with every argument cold: what other harnesses report."""
        p, rounds = self.p, []
        case = p.timing.case.id
        count = min(self.t.plain_layouts, len(p.layouts))
        theirs, ours = self._draws(count), self._draws(count)
        for n in range(count):
            values: dict[str, list[float]] = {"candidate": [], "baseline": []}
            pair = {"candidate": theirs[n], "baseline": ours[n]}
            for side in abba(self.random):
                body = turn_order(p, pair[side], "plain")
                if side == "candidate":
                    turn = self.trial.ask(body, PlainTurn)
                else:
                    turn = PlainTurn.model_validate(self.judge.ask(**body).body)
                if len(turn.plain_us) != TIMED:
                    raise forged("a turn answered with another number of readings than were asked", case)
                values[side].append(statistics.fmean(turn.plain_us) / p.layouts[pair[side]].calls)
            rounds.append((n, math.log(statistics.fmean(values["baseline"]) / statistics.fmean(values["candidate"]))))
        return stopping.estimate(rounds, trim=0.0)


def _theirs(r: _Round) -> list[_Turn]:
    return r.candidate


def _ours(r: _Round) -> list[_Turn]:
    return r.baseline


def _baseline_gate(rounds: list[_Round]) -> float:
    return statistics.median(t.gate for r in rounds for t in r.baseline)


def _gap_us(rounds: list[_Round], t: Timing, slack_us: float) -> float:
    """Microseconds a call that this process's clock saw beyond the candidate's readings, and not beyond the
    baseline's; 0 where they are within what two honest processes differ by."""
    gate = _baseline_gate(rounds)
    candidate = statistics.median(turn.op(gate) for r in rounds for turn in r.candidate)
    theirs = [turn.unexplained(gate) for r in rounds for turn in r.candidate]
    ours = [turn.unexplained(gate) for r in rounds for turn in r.baseline]
    gap = statistics.median(theirs) - statistics.median(ours)
    calls = statistics.median(turn.calls for r in rounds for turn in r.candidate)
    slack = slack_us / calls
    return gap if gap > max(t.witness * candidate, 4 * (_spread(ours) + _spread(theirs)), slack) else 0.0


def _ratios(rounds: list[_Round]) -> list[tuple[int, float]]:
    """(layout, log ratio) of the rounds in which both sides took a positive time."""
    gate = _baseline_gate(rounds)
    found = []
    for r in rounds:
        candidate = statistics.fmean(t.op(gate) for t in r.candidate)
        baseline = statistics.fmean(t.op(gate) for t in r.baseline)
        if min(candidate, baseline) > 0:
            found.append((r.layout, math.log(baseline / candidate)))
    return found


def _spread(values: list[float]) -> float:
    """Standard error of a median, from the middle half."""
    if len(values) < 4:
        return math.inf
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 1.35 * 1.25 / math.sqrt(len(ordered))
