"""Calls timed one by one by this process's clock: on a CPU, and on a GPU what can't be captured.

Each turn calls every slot once, on values that the judge releases just before it. Outputs are in shared memory when the
turn ends. Behind each of the candidate's turns a few calls are drawn and judged: outputs, inputs, and the memory that
was used. The candidate's process is asked for nothing between release and turn, nor between turn and look; from the one
to the other it is charged the CPU time that the kernel counted for all its threads and processes. What turns take
without any call is measured in the judge's process alone, and taken off both sides.
"""

from __future__ import annotations

import random
import time
from typing import Any

from fk_core.fault import CandidateFault, wrong_when_timed
from fk_core.judge_session import JudgeSession
from fk_core.records.claims import HeldClaim, LoopClaim
from fk_core.records.report import Evidence, Outcome
from fk_core.stopping import Round
from fk_core.trial import Trial

Side = str
CANDIDATE, BASELINE = "candidate", "baseline"
_JUDGED = 2
"""Calls of a turn that are judged."""
_KEPT = (2, 8)
"""Outputs that stay alive while the next calls are made, at least and at most."""
_IDLE_TURNS = 3
_UNLIKE = 4
"""Sides whose turns would differ by more than this in calls get different turns."""
_STEP = 8
"""Where one call takes so small a part of a turn, more calls are tried before it is said how many fit."""
_SPARE = 2
"""Slots that keep their values: calls on them, just before the release, wake a process that has waited."""
_WARM_CALLS = 16
"""At most, and at most a quarter of what is timed."""
_FEINT = 0.25
"""Share of rounds that begin with the warm calls of a turn and a look at the process where the turn would follow."""
_FEINT_WITHIN = 4
"""One of so many first rounds does in any case."""


def abba(rng: random.Random) -> tuple[Side, ...]:
    """Whose turn it is, four times."""
    a, b = BASELINE, CANDIDATE
    return (a, b, b, a) if rng.random() < 0.5 else (b, a, a, b)


class EagerTimer:
    """Times one case that both sides have laid out with so many ``slots``; a turn lasts about ``target_s``."""

    def __init__(
        self, trial: Trial, judge: JudgeSession, case: str, slots: int, target_s: float, *, on_gpu: bool
    ) -> None:
        self.trial, self.judge, self.case, self.slots, self.on_gpu = trial, judge, case, slots, on_gpu
        self.random = trial.random
        slots -= min(_SPARE, slots - 1)
        self._usable, self._spare = range(slots), range(slots, self.slots)
        self._idle: dict[int, list[float]] = {}
        self._took: list[dict[Side, list[float]]] = []
        self._first_feint = self.random.randrange(_FEINT_WITHIN)
        if not on_gpu:
            trial.crowd.look()
        for side in (CANDIDATE, BASELINE):
            self._release(side, list(self._spare))
        pace = {side: self._pace(side, target_s) for side in (CANDIDATE, BASELINE)}
        if max(pace.values()) <= _UNLIKE * min(pace.values()):
            # As many calls on either side: what a turn costs by itself is the same share of both.
            pace = dict.fromkeys(pace, max(pace.values()))
        self.calls = pace

    def _pace(self, side: Side, target_s: float) -> int:
        """How many calls a turn of this side would have to last ``target_s``."""
        calls, most = 1, len(self._usable)
        while True:
            took = min(self._turn(side, self._draw(calls)) for _ in range(2)) - self._idle_s(calls)
            wanted = max(1, min(most, round(calls * target_s / max(took, 1e-6))))
            if wanted <= _STEP * calls or calls == most:
                return wanted
            calls = min(most, _STEP * calls)

    def round(self) -> None:
        """Two turns on either side. Raises ``CandidateFault`` where a timed call was not what judged calls were."""
        took: dict[Side, list[float]] = {CANDIDATE: [], BASELINE: []}
        for calls in set(self.calls.values()):
            self._rest(calls)
        if self._feint_due():
            self._feint()
        sides = abba(self.random)
        for pair in (sides[:2], sides[2:]):
            order = self._draw(max(self.calls.values()))
            for side in pair:
                mine = order[: self.calls[side]]
                took[side].append(self._turn(side, mine, audit=True))
        self._took.append(took)
        if not self.on_gpu:
            self.trial.crowd.look()

    def _feint_due(self) -> bool:
        """One of the first few rounds, and some of the others: nobody waits until there are no more."""
        return len(self._took) == self._first_feint or self.random.random() < _FEINT

    def _feint(self) -> None:
        """Warm calls as before a turn, then a look at the process. Whatever has replaced a part of the harness for the
        next turn, and will put it back in it, is in place now.
        """
        self._warm(CANDIDATE, self.calls[CANDIDATE])
        self.trial.checkpoint("timed calls", lambda: False)

    def rounds(self) -> list[Round]:
        """Seconds of a call, turn by turn, of the rounds until now; without those no longer than idle turns."""
        found = []
        for took in self._took:
            baseline, candidate = (
                [(turn - min(self._idle[self.calls[side]])) / self.calls[side] for turn in took[side]]
                for side in (BASELINE, CANDIDATE)
            )
            if min(baseline + candidate) > 0:
                found.append((baseline, candidate))
        return found

    def _draw(self, count: int) -> list[int]:
        """New values for so many slots, which the judge keeps for now; gives the slots in the order of their calls."""
        self.judge.ask("draw", case=self.case)
        return self.random.sample(self._usable, count)

    def _release(self, side: Side, order: list[int]) -> None:
        self.judge.ask("release", case=self.case, side="theirs" if side == CANDIDATE else "ours", slots=order)

    def _turn(self, side: Side, order: list[int], *, audit: bool = False, idle: bool = False) -> float:
        """Seconds that this process's clock sees the calls take, or the CPU time of the candidate if that is more."""
        body = self._warm(side, len(order))
        theirs = side == CANDIDATE
        before = self.trial.cpu_seconds() if theirs else None
        released = began = time.perf_counter()
        self._release(side, order)
        if not theirs:
            # The judge was at work until now; the candidate's process has waited as long as this.
            time.sleep(time.perf_counter() - began)
        # On a GPU what the host does between calls is hidden behind them: only the way there and back is taken off.
        ordered = [] if idle and self.on_gpu else order
        began = time.perf_counter()
        self._ask(side, body | {"order": ordered, "idle": idle})
        took = time.perf_counter() - began
        if theirs and audit:
            self._audit(order)
        if before is None:
            return took
        worked, who = self.trial.cpu_seconds()
        if who != before[1]:
            # A process that came or went may have worked uncounted: all the time that it had is charged.
            return time.perf_counter() - released
        return max(took, worked - before[0])

    def _warm(self, side: Side, calls: int) -> dict[str, Any]:
        """Calls on spare slots, as many as are due before so many; gives what the request for those has in common."""
        body = {"do": "loop", "case": self.case, "keep": self.random.randint(*_KEPT)}
        warm = min(_WARM_CALLS, calls // 4)
        if warm:
            self._ask(side, body | {"order": [self._spare[n % len(self._spare)] for n in range(warm)], "idle": False})
        return body

    def _ask(self, side: Side, body: dict[str, Any]) -> None:
        if side == CANDIDATE:
            made = self.trial.ask(body, LoopClaim).made
            if made != len(body["order"]):
                raise _cut_short(made, len(body["order"]))
        else:
            self.judge.ask(**body)

    def _idle_s(self, calls: int) -> float:
        """Seconds that a turn takes apart from its calls, in the judge's process."""
        for _ in range(_IDLE_TURNS):
            self._rest(calls)
        return min(self._idle[calls])

    def _rest(self, calls: int) -> None:
        """One more turn without calls."""
        if not self._idle:
            self._turn(BASELINE, self._draw(1))  # whose outputs the idle turns copy
        self._idle.setdefault(calls, []).append(self._turn(BASELINE, self._draw(calls), idle=True))

    def _audit(self, order: list[int]) -> None:
        """Judge a few calls of the turn that has just ended, then the memory that its last calls used."""
        slots = self.random.sample(order, min(_JUDGED, len(order)))
        told = self.judge.ask("audit_loop", case=self.case, slots=slots).body
        if not told["wrong"]:
            held = self.trial.ask({"do": "held", "case": self.case}, HeldClaim)
            told = self.judge.ask("memory_use", case=self.case, aliases=held.aliases, earlier=held.earlier).body
        if told["wrong"]:
            raise _fault(told, self.case)


def _cut_short(made: int, asked: int) -> CandidateFault:
    what = f"a turn of {asked} timed calls was ended after {made}"
    instead = "leave the harness's own objects in the process alone; compute each result in the call that returns it"
    evidence = Evidence(kind="timer_tamper", what=what, instead=instead)
    return CandidateFault(Outcome.TAMPERED, what, [evidence])


def _fault(told: dict[str, Any], case: str) -> CandidateFault:
    name = told["name"]
    kind, outcome, what, instead = {
        "values": (
            "phase",
            Outcome.WRONG_VALUES,
            f"a timed call gave wrong values in {name}, though other calls of the same shape were right before",
            "compute the result anew in every call; if it is, look for a race between threads or streams",
        ),
        "input": (
            "input_mutation",
            Outcome.MUTATED,
            f"a timed call changed its argument {name}, which the judged calls left alone",
            "allocate the output; only arguments that the contract lists may be written to",
        ),
        "alias": (
            "output_alias",
            Outcome.MUTATED,
            f"in timed calls, {name}",
            "allocate the output anew in every call, or return memory that the contract lists as an alias",
        ),
    }[told["wrong"]]
    return wrong_when_timed(outcome, kind, what, instead, told, case)
