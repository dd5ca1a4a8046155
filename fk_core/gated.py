"""Timing one case by its captured graphs, gates between the calls: whose turn it is, when to stop, who is believed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from fk_core import stopping
from fk_core.eager import abba
from fk_core.errors import HarnessError
from fk_core.judge_session import JudgeSession
from fk_core.prepared import PRIME, TIMED, Prepared, forged, turn_order
from fk_core.records.claims import FullTurn, GateTurn, PlainTurn
from fk_core.settings import Timing
from fk_core.stopping import Estimate
from fk_core.timings import CaseTiming
from fk_core.trial import Trial

_USABLE = 0.8
"""Share of the rounds that must have given a positive time for both sides: dropping more would select the good ones."""
_PATIENCE = 3
_GATE_EVERY = 2
"""Rounds for each turn of the gates alone."""
_SLACK_US, _LONG_SLACK_US = 60.0, 300.0
"""Difference of two processes' own overheads in a turn that means nothing: 200 us a turn were seen on an H200, through
all turns of a job. In long turns it is a smaller part of a call, so that more of it can be allowed."""
_PAIR = (4, 16)
"""Timed batches of two turns one after the other: what a turn costs beside its batches is in both."""


@dataclass(frozen=True)
class _Turn:
    """What one turn of gates and calls claims to have taken, and what this process's clock saw, in microseconds."""

    full: float
    """Of a batch."""
    calls: int
    """Of a batch. A gate stands before each, and one behind the last."""
    batches: int
    wall: float
    """Of so many batches."""
    whole: _Turn | None = None
    """The longer turn of a pair, where this is what it had more than the shorter one."""

    def op(self, gate: float) -> float:
        """Time of a call, where a gate takes ``gate``."""
        return (self.full - (self.calls + 1) * gate) / self.calls

    @property
    def unexplained(self) -> float:
        """What the clock saw a batch beyond the readings: flushes, launches, the way there and back, and what was
        hidden. Not a call, as layouts have different numbers of them."""
        return self.wall / self.batches - self.full


@dataclass(frozen=True)
class _Round:
    layout: int
    candidate: list[_Turn]
    baseline: list[_Turn]


class GatedTimer:
    """Times one prepared case."""

    def __init__(
        self,
        trial: Trial,
        judge: JudgeSession,
        t: Timing,
        floor: float,
        p: Prepared,
        look: Callable[[Prepared, int, int], None],
    ) -> None:
        """``look`` at what a layout's last timed replay left, and what its inputs followed from: ``Audits.look``."""
        self.trial, self.judge, self.t, self.floor, self.p, self.look = trial, judge, t, floor, p, look
        self.random = trial.random
        self._gates: list[float] = []
        """Readings of the gates alone, of the rounds at hand."""

    def run(self) -> None:
        """Take rounds until the interval is narrow or the budget spent; leaves what it found in the case's timing."""
        timing = self.p.timing
        timing.mode = "gate nodes"
        for side in ("candidate", "baseline"):
            self._turn(side, 0)  # not counted: the device wakes up
        rounds = self._rounds(self._turn)
        gap = _gap_us(rounds, self.gate, self.t)
        if gap:
            # Something held one side up, maybe not the candidate: a process on a busy core takes more for each turn, as
            # long as it lasts. Only what is seen again is its doing, and what grows with the batches.
            timing.notes.append(f"the clock outside saw {gap:.2f} us a call more than the first rounds: taken again")
            rounds = self._rounds(self._pair)
            gap = _gap_us(rounds, self.gate, self.t)
        self._look()
        self._conclude(timing, rounds, gap)
        timing.plain = self._plain()

    def _look(self) -> None:
        """One more turn of the candidate, like all others; what its last batch left is judged later.

        Of one batch or two, so that none of a turn is always safe, and before anything else is replayed, which would
        tell that no timed turn follows.
        """
        layout, fresh = self.random.randrange(len(self.p.layouts)), self.random.getrandbits(30)
        timed = self.random.randint(1, TIMED)
        self._ask("candidate", layout, timed, fresh)
        self.look(self.p, layout, fresh + timed - 1)

    @property
    def gate(self) -> float:
        """Microseconds of one gate, by the baseline's process."""
        return statistics.median(self._gates)

    def _rounds(self, take: Callable[[str, int], _Turn]) -> list[_Round]:
        """Rounds of turns, each of which ``take`` takes of a side and layout."""
        p = self.p
        began = time.monotonic()
        count = len(p.layouts)
        theirs, ours = self._draws(count), self._draws(count)
        rounds: list[_Round] = []
        self._gates.clear()
        while True:
            n = len(rounds)
            if n % _GATE_EVERY == 0:
                self._gates.append(self._gate())
            pair = {"candidate": theirs[n % count], "baseline": ours[n % count]}
            turns: dict[str, list[_Turn]] = {"candidate": [], "baseline": []}
            for side in abba(self.random):
                turns[side].append(take(side, pair[side]))
            rounds.append(_Round(n % count, turns["candidate"], turns["baseline"]))
            stop = self._stop(_ratios(rounds, self.gate), len(rounds), time.monotonic() - began)
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

    def _turn(self, side: str, layout: int) -> _Turn:
        """One turn of gates and calls."""
        readings, wall_us = self._ask(side, layout, TIMED)
        # The primed batches ran as long as the timed ones.
        return _Turn(statistics.fmean(readings), self.p.layouts[layout].calls, PRIME + TIMED, wall_us)

    def _pair(self, side: str, layout: int) -> _Turn:
        """What the batches take by which one turn is longer than another: whatever each turn costs is in neither."""
        short, long = _PAIR
        (some, less_us), (more, more_us) = (self._ask(side, layout, timed) for timed in _PAIR)
        calls = self.p.layouts[layout].calls
        whole = _Turn(statistics.fmean(more), calls, PRIME + long, more_us)
        return _Turn(statistics.fmean(some + more), calls, long - short, more_us - less_us, whole)

    def _ask(self, side: str, layout: int, timed: int, fresh: int | None = None) -> tuple[list[float], float]:
        """The readings of one turn of gates and calls, and how long this process's clock saw it last.

        ``fresh``: what its inputs follow from; drawn where it is None.
        """
        fresh = self.random.getrandbits(30) if fresh is None else fresh
        body = turn_order(self.p, layout, "full", timed) | {"fresh": fresh}
        began = time.perf_counter()
        if side == "candidate":
            turn = self.trial.ask(body, FullTurn)
        else:
            turn = FullTurn.model_validate(self.judge.ask(**body).body)
        wall_us = (time.perf_counter() - began) * 1e6
        self._check(side, layout, turn.full_us, turn.calls, timed)
        return turn.full_us, wall_us

    def _check(self, side: str, layout: int, readings: list[float], calls: int, timed: int) -> None:
        """Raises where a turn answered with another number of readings, or of calls, than was asked."""
        if len(readings) == timed and calls == self.p.layouts[layout].calls:
            return
        what = "a turn answered with another number of readings or calls than was asked"
        if side == "candidate":
            raise forged(what, self.p.timing.case.id)
        raise HarnessError(f"the judge timed {self.p.timing.case.id}: {what}", hint="Submit the source again")

    def _gate(self) -> float:
        """What a gate takes, by a turn of the gates alone.

        The same kernel over the same bytes takes the same time in either process, to within a few nanoseconds, and an
        error in it moves both sides alike: so nobody need believe the candidate here, nor wait for it.
        """
        p = self.p
        layout = self.random.randrange(min(self.t.gate_layouts, len(p.layouts)))
        turn = GateTurn.model_validate(self.judge.ask(**turn_order(p, layout, "gate")).body)
        return statistics.fmean(turn.gate_us) / (p.layouts[layout].calls + 1)

    def _conclude(self, timing: CaseTiming, rounds: list[_Round], gap: float) -> None:
        gate = self.gate
        usable = _ratios(rounds, gate)
        if len(usable) < max(3.0, _USABLE * len(rounds)):
            timing.reason = "the calls are shorter than what the clock resolves"
            return
        estimate = stopping.estimate(usable, trim=self.t.trim)
        candidate = statistics.median(t.op(gate) for r in rounds for t in r.candidate)
        baseline = statistics.median(t.op(gate) for r in rounds for t in r.baseline)
        if gap:
            # This process's clock saw more than the candidate's readings account for: the clock decides. Both sides ran
            # the same flushes and gates, so what their turns differ by is what their calls differ by.
            timing.notes.append(
                f"the outside clock saw {gap:.2f} us a call more than the candidate's readings; the clock decides"
            )
            candidate += gap
            error = 1.96 * _gap_error(rounds) / candidate
            half = None if estimate.half_width is None else max(estimate.half_width, error)
            estimate = Estimate(math.log(baseline / candidate), half, estimate.rounds, estimate.layouts)
        timing.estimate, timing.candidate_us, timing.baseline_us = estimate, candidate, baseline

    def _plain(self) -> Estimate:
        """Plain replay with every argument cold: what other harnesses report."""
        p, rounds = self.p, []
        count = min(self.t.plain_layouts, len(p.layouts))
        theirs, ours = self._draws(count), self._draws(count)
        for n in range(count):
            values: dict[str, list[float]] = {"candidate": [], "baseline": []}
            pair = {"candidate": theirs[n], "baseline": ours[n]}
            for side in abba(self.random)[:2]:  # a secondary figure: one turn of each
                body = turn_order(p, pair[side], "plain")
                if side == "candidate":
                    turn = self.trial.ask(body, PlainTurn)
                else:
                    turn = PlainTurn.model_validate(self.judge.ask(**body).body)
                self._check(side, pair[side], turn.plain_us, turn.calls, TIMED)
                values[side].append(statistics.fmean(turn.plain_us) / p.layouts[pair[side]].calls)
            rounds.append((n, math.log(statistics.fmean(values["baseline"]) / statistics.fmean(values["candidate"]))))
        return stopping.estimate(rounds, trim=0.0)


def _gap_us(rounds: list[_Round], gate: float, t: Timing) -> float:
    """Microseconds a call that this process's clock saw beyond the candidate's readings, and not beyond the
    baseline's; 0 where they are within what two honest processes differ by.

    Of pairs of turns both is looked at: what the batches took by which one is longer, where no turn's own costs hide a
    little; and the longer turn as a whole, since who waits in the shorter one hides as much in the longer.
    """
    found = _hidden(rounds, gate, t, _SLACK_US)
    whole = [_Round(r.layout, _wholes(r.candidate), _wholes(r.baseline)) for r in rounds]
    return max(found, _hidden(whole, gate, t, _LONG_SLACK_US)) if whole[0].candidate else found


def _wholes(turns: list[_Turn]) -> list[_Turn]:
    return [turn.whole for turn in turns if turn.whole]


def _hidden(rounds: list[_Round], gate: float, t: Timing, slack_us: float) -> float:
    """As :func:`_gap_us`, where ``slack_us`` a turn may differ."""
    theirs, ours = _turns(rounds)
    calls, batches = statistics.median(t.calls for t in theirs), theirs[0].batches
    hidden = statistics.median(t.unexplained for t in theirs) - statistics.median(t.unexplained for t in ours)
    least = max(
        t.witness * statistics.median(turn.op(gate) for turn in theirs),
        4 * _gap_error(rounds),
        slack_us / (batches * calls),
    )
    return hidden / calls if hidden / calls > least else 0.0


def _gap_error(rounds: list[_Round]) -> float:
    """Standard error of what the clock saw a call more on one side than on the other, in microseconds."""
    theirs, ours = _turns(rounds)
    errors = [_spread([t.unexplained for t in side]) for side in (theirs, ours)]
    return math.hypot(*errors) / statistics.median(t.calls for t in theirs)


def _turns(rounds: list[_Round]) -> tuple[list[_Turn], list[_Turn]]:
    """All turns of the candidate, and all of the baseline."""
    return [t for r in rounds for t in r.candidate], [t for r in rounds for t in r.baseline]


def _ratios(rounds: list[_Round], gate: float) -> list[tuple[int, float]]:
    """(layout, log ratio) of the rounds in which both sides took a positive time."""
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
