"""Every call of the plan, made by the candidate and judged: first those of the cases, then all others."""

from __future__ import annotations

import collections
import itertools
import time
from typing import Any

from fk_core.child import wire
from fk_core.fault import INSTEAD, CandidateFault, host_fault, in_call, stream_fault, wrong
from fk_core.records.claims import CallClaim, Findings, HoldClaim, StateClaim, TryClaim
from fk_core.records.report import CaseReport, Evidence, Outcome
from fk_core.trial import Progress, Trial

_FIRST_CALLS = 4
_LEAST_WAIT_S = 0.1
_HELD_CALLS = (72, 96)
"""How many calls are made whose outputs are all kept; drawn anew each time."""
_SLOW_S = 0.25
"""Of held calls of the smallest shape: an interpreted kernel takes longer."""


class Correctness:
    """The correctness of one trial. Fills errors into ``cases``; every method raises at the first call that rejects."""

    def __init__(self, trial: Trial, cases: dict[str, CaseReport], progress: Progress) -> None:
        self.trial, self.judge, self.cases, self.progress = trial, trial.judge, cases, progress
        self.probes: list[dict[str, Any]] = trial.plan["probes"]
        self._tried: set[str] = set()

    def of_cases(self) -> None:
        """The calls of the cases themselves, at their full shapes."""
        self._judge([i for i, probe in enumerate(self.probes) if probe["case_id"] is not None])

    def of_the_rest(self) -> None:
        """All other calls, those whose outputs are all kept, then the weights and a look at the process."""
        self._judge([i for i, probe in enumerate(self.probes) if probe["case_id"] is None])
        self._hold()
        for key in self.trial.made():
            self._weights(key)
        self.trial.weigh(self.trial.ask({"do": "checkpoint", "where": "calls"}, Findings))

    def _judge(self, indices: list[int]) -> None:
        """A call is made while the one before it is judged, where the judge has laid it out by then."""
        calls = _Calls(self.trial, [i for i in indices if self._wanted(self.probes[i])])
        while (i := calls.next()) is not None:
            probe = self.probes[i]
            self.trial.check()
            if i % 8 == 0:
                self.progress(f"correctness: call {i + 1} of {len(self.probes)}", i / len(self.probes))
            try:
                claim = calls.made()
            except CandidateFault as fault:
                fault.case = probe["case_id"] or ""
                if probe["may_raise"] and fault.outcome is Outcome.CRASHED and self.trial.child.alive():
                    self.trial.warnings.append(f"{probe['why']}: {fault.reason.splitlines()[0][:200]}")
                    calls.left_out()
                    continue
                fault.reason = in_call(fault.reason, probe)
                raise
            self._try_capture(calls.laid[0], probe["case_id"] or "")
            told = calls.judged(claim)
            self._note(probe, told)
            if told["ok"]:
                if told.get("skipped"):
                    self.trial.warnings.append(f"{probe['why']}: {told['skipped']}")
                continue
            if not probe["gating"]:
                self.trial.warnings.append(f"{probe['why']}: {told['note']}")
                continue
            raise wrong(told, probe)

    def _wanted(self, probe: dict[str, Any]) -> bool:
        """Whether a call is made: outside its domain an engine would run the baseline in the candidate's place."""
        if not self.trial.domain.covers(probe["dims"], probe["dtype"]):
            return False
        return probe["unless"] is None or not self._wanted(self.probes[probe["unless"]])

    def _try_capture(self, laid: dict[str, Any], case: str) -> None:
        """Capture one call of each module on a GPU: work that is left on another stream, or runs on the CPU, is seen
        before it can race.
        """
        if not self.trial.on_gpu or laid["key"] in self._tried:
            return
        claim = self.trial.ask({"do": "try", "key": laid["key"], "inputs": laid["inputs"]}, TryClaim)
        self._tried.add(laid["key"])
        if claim.unjoined:
            raise stream_fault(case, claim.reason)
        if claim.nodes.get("host"):
            raise host_fault(case, claim.nodes["host"])

    def _note(self, probe: dict[str, Any], told: dict[str, Any]) -> None:
        case = self.cases.get(probe["case_id"] or "")
        if case is None:
            return
        self.cases[case.id] = case.model_copy(
            update={
                name: _most(getattr(case, name), told.get(name))
                for name in ("max_abs_error", "max_error_ratio", "baseline_error_ratio")
            }
        )

    # -- outputs that are kept, and weights ------------------------------------------------------------------------

    def _hold(self) -> None:
        """Many calls of a small shape whose outputs all stay alive: for every form on a GPU, else one of each class. As
        many of a larger shape follow, on a CPU only behind kernels that are not interpreted.
        """
        holds, on_gpu = self.trial.plan["holds"], self.trial.on_gpu
        numbers: dict[tuple[str, str, bool], int] = {}
        for number, shape in enumerate(holds):
            if self.trial.domain.covers(shape["dims"], shape["dtype"]):
                numbers.setdefault((shape["entry"], shape["form"], shape["large"]), number)
        chosen = [(entry, form) for entry, form, large in numbers if not large]
        if not on_gpu:
            self.trial.random.shuffle(chosen)
            chosen = list({which[0]: which for which in chosen}.values())
        for which in chosen:
            began = time.monotonic()
            for large in (False, True):
                found = numbers.get((*which, large))
                slow = large and not on_gpu and time.monotonic() - began > _SLOW_S
                if found is None or slow:
                    continue
                self.trial.check()
                self.progress("correctness: calls whose outputs are all kept", 1.0)
                self._hold_one(holds[found], found)

    def _hold_one(self, shape: dict[str, Any], number: int) -> None:
        calls = self.trial.random.randint(*_HELD_CALLS)
        probe = {**shape, "case_id": None, "why": f"{calls} calls whose outputs are all kept"}
        limits = self.trial.settings.limits
        self.trial.make(shape["key"])
        laid = self.judge.ask("hold", number=number, calls=calls).body
        try:
            claim = self.trial.ask({"do": "hold", **laid}, HoldClaim, timeout_s=max(limits.call_s, limits.first_call_s))
        except CandidateFault as fault:
            fault.reason = in_call(fault.reason, probe)
            raise
        told = self.judge.ask("judge_hold", shared=claim.shared).body
        if not told["ok"]:
            raise wrong(told, probe)

    def _weights(self, key: str) -> None:
        places = self.judge.ask("state", key=key).body["places"]
        if not places:
            return
        claim = self.trial.ask({"do": "state", "key": key, "places": places}, StateClaim)
        told = self.judge.ask("judge_state", key=key, copied=claim.copied).body
        if not told["ok"]:
            evidence = Evidence(kind="state_mutation", what=told["note"], instead=INSTEAD["state_mutation"])
            raise CandidateFault(Outcome.MUTATED, told["note"], [evidence])


class _Calls:
    """Some calls of a plan, in order. The judge lays them out, at most two ahead of what it has judged; the next one is
    posted to the candidate before the judge is asked about the last one.
    """

    def __init__(self, trial: Trial, wanted: list[int]) -> None:
        self.trial, self.judge = trial, trial.judge
        self.rest = collections.deque(wanted)
        self.laid: collections.deque[dict[str, Any]] = collections.deque()
        self.ticket: tuple[int, int] | None = None
        self.posted = 0.0
        self.fault: CandidateFault | None = None
        """That of the call that was to be posted: it counts when its turn comes."""
        self._take(self.judge.ask("lay", lay=self._following(), skip=None))

    def _following(self) -> list[int]:
        return list(itertools.islice(self.rest, 2 - len(self.laid)))

    def _take(self, answer: wire.Frame) -> None:
        for laid in answer.body["laid"]:
            self.laid.append(laid)
            self.rest.popleft()

    def next(self) -> int | None:
        """The call that is to be looked at now."""
        return self.laid[0]["seq"] if self.laid else None

    def made(self) -> CallClaim:
        """What the candidate says of it; raises its fault."""
        laid, limits = self.laid[0], self.trial.settings.limits
        if self.fault is not None:
            raise self.fault
        ticket, self.ticket = self.ticket or self._post(laid), None
        timeout_s = limits.first_call_s if laid["seq"] < _FIRST_CALLS else limits.call_s
        # The judge may have worked meanwhile.
        left_s = max(_LEAST_WAIT_S, timeout_s - (time.monotonic() - self.posted))
        return self.trial.collect(ticket, "call", CallClaim, timeout_s=left_s)

    def judged(self, claim: CallClaim) -> dict[str, Any]:
        """What the judge says of it, while the candidate makes the next one."""
        seq = self.laid.popleft()["seq"]
        # The candidate's code runs only after this: it could still write to what the last call left.
        self.judge.ask("take", i=seq)
        if self.laid:
            try:
                self.ticket = self._post(self.laid[0])
            except CandidateFault as fault:
                self.fault = fault
        described = [o.model_dump(exclude_none=True) for o in claim.outputs]
        answer = self.judge.ask(
            "step", i=seq, outputs=described, aliases=claim.aliases, earlier=claim.earlier, lay=self._following()
        )
        self._take(answer)
        told: dict[str, Any] = answer.body["told"]
        return told

    def left_out(self) -> None:
        """It raised, as it may."""
        self.fault = None
        seq = self.laid.popleft()["seq"]
        self._take(self.judge.ask("lay", lay=self._following(), skip=seq))

    def _post(self, laid: dict[str, Any]) -> tuple[int, int]:
        self.trial.make(laid["key"])
        self.posted = time.monotonic()
        return self.trial.post({"do": "call", **laid})


def _most(one: float | None, other: float | None) -> float | None:
    found = [v for v in (one, other) if v is not None]
    return max(found) if found else None
