"""Calls timed one by one by this process's clock: on a CPU, and on a GPU what can't be captured.

Before each pair of turns the judge writes new values into the slots, and each slot is called once: no result is known
before its turn. Outputs are in shared memory when the turn ends. Behind each of the candidate's turns a few calls are
drawn and judged: outputs, inputs, and the memory that was used. What turns take without any call is measured in the
judge's process alone, and taken off both sides.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from fk_core.judge_session import JudgeSession
from fk_core.records.claims import HeldClaim, Nothing
from fk_core.records.report import Evidence, Outcome
from fk_core.trial import CandidateFault, Trial

Side = str
CANDIDATE, BASELINE = "candidate", "baseline"
_JUDGED = 2
"""Calls of a turn that are judged."""
_KEPT = (2, 8)
"""Outputs that stay alive while the next calls are made, at least and at most."""
_IDLE_TURNS = 3


def abba(rng: random.Random) -> tuple[Side, ...]:
    """Whose turn it is, four times."""
    a, b = BASELINE, CANDIDATE
    return (a, b, b, a) if rng.random() < 0.5 else (b, a, a, b)


class EagerTimer:
    """Times one case that both sides have laid out with so many ``slots``; a turn lasts about ``target_s``."""

    def __init__(self, trial: Trial, judge: JudgeSession, case: str, slots: int, target_s: float) -> None:
        self.trial, self.judge, self.case, self.slots = trial, judge, case, slots
        self.random = trial.random
        self._idle: dict[int, list[float]] = {}
        self.calls = {side: self._pace(side, target_s) for side in (CANDIDATE, BASELINE)}

    def _pace(self, side: Side, target_s: float) -> int:
        """How many calls a turn of this side has."""
        took = []
        for _ in range(2):
            order = self._fill(1)
            took.append(self._turn(side, order) - self._idle_s(1))
        return max(1, min(self.slots, round(target_s / max(min(took), 1e-6))))

    def round(self) -> dict[Side, float]:
        """Mean seconds of a call on either side, of two turns each; may be below zero for the shortest calls.

        Raises ``CandidateFault`` where a timed call was not what judged calls were.
        """
        seconds: dict[Side, list[float]] = {CANDIDATE: [], BASELINE: []}
        sides = abba(self.random)
        for pair in (sides[:2], sides[2:]):
            order = self._fill(max(self.calls.values()))
            for side in pair:
                mine = order[: self.calls[side]]
                seconds[side].append((self._turn(side, mine) - self._idle_s(len(mine))) / len(mine))
                if side == CANDIDATE:
                    self._audit(mine)
        return {side: statistics.fmean(values) for side, values in seconds.items()}

    def _fill(self, count: int) -> list[int]:
        """New values in so many slots; gives these, in the order of their calls."""
        order = self.random.sample(range(self.slots), count)
        self.judge.ask("refill", case=self.case, slots=order)
        return order

    def _turn(self, side: Side, order: list[int], *, idle: bool = False) -> float:
        """Seconds that this process's clock sees the calls take."""
        self._ask(side, {"do": "ready", "case": self.case, "order": order})
        body = {"do": "loop", "case": self.case, "order": order, "keep": self.random.randint(*_KEPT), "idle": idle}
        began = time.perf_counter()
        self._ask(side, body)
        return time.perf_counter() - began

    def _ask(self, side: Side, body: dict[str, Any]) -> None:
        if side == CANDIDATE:
            self.trial.ask(body, Nothing)
        else:
            self.judge.ask(**body)

    def _idle_s(self, calls: int) -> float:
        """Seconds that a turn takes apart from its calls; measured anew a few times, in the judge's process."""
        seen = self._idle.setdefault(calls, [])
        if not seen:
            self._turn(BASELINE, [0])  # whose outputs the idle turns copy
        if len(seen) < 2 * _IDLE_TURNS:
            order = [n % self.slots for n in range(calls)]
            seen += [self._turn(BASELINE, order, idle=True) for _ in range(_IDLE_TURNS)]
        return statistics.median(seen)

    def _audit(self, order: list[int]) -> None:
        held = self.trial.ask({"do": "held", "case": self.case}, HeldClaim)
        told = self.judge.ask(
            "audit_loop",
            case=self.case,
            slots=self.random.sample(order, min(_JUDGED, len(order))),
            aliases=held.aliases,
            earlier=held.earlier,
        ).body
        if told["wrong"]:
            raise _fault(told["wrong"], told["name"], self.case)


def _fault(wrong: str, name: str, case: str) -> CandidateFault:
    kind, outcome, what, instead = {
        "values": (
            "phase",
            Outcome.TAMPERED,
            f"a timed call gave wrong values in {name}, though the same calls were right before",
            "compute the result anew in every call",
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
    }[wrong]
    return CandidateFault(outcome, what, [Evidence(kind=kind, what=what, instead=instead)], case)
