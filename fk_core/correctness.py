"""Every call of the plan, made by the candidate and judged by the judge, each at its own pace."""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

from fk_core.domain import Domain
from fk_core.fault import INSTEAD, CandidateFault, host_fault, in_call, stream_fault, wrong
from fk_core.records.claims import CallClaim, HoldClaim, StateClaim, TryClaim
from fk_core.records.report import BEGUN, NOT_REACHED, CaseReport, Evidence, Outcome
from fk_core.trial import Progress, Trial

_FIRST_CALLS = 4
_LEAST_WAIT_S = 0.1
_HELD_CALLS = (72, 96)
"""How many calls are made whose outputs are all kept; drawn anew each time."""
_SLOW_S = 0.25
"""Of held calls of the smallest shape: an interpreted kernel takes longer."""


def left_out(domain: Domain, probes: list[dict[str, Any]]) -> list[int]:
    """Numbers of the calls that are not made: outside its domain an engine would run the baseline in the candidate's
    place. A call that stands in for another one is made only where that one is left out.
    """

    def made(probe: dict[str, Any]) -> bool:
        if not domain.covers(probe["dims"], probe["dtype"]):
            return False
        return probe["unless"] is None or not made(probes[probe["unless"]])

    return [i for i, probe in enumerate(probes) if not made(probe)]


class Correctness:
    """The correctness of one trial. Fills errors into ``cases``; every method raises at the first call that rejects."""

    def __init__(self, trial: Trial, cases: dict[str, CaseReport], progress: Progress) -> None:
        self.trial, self.judge, self.cases, self.progress = trial, trial.judge, cases, progress
        self.probes: list[dict[str, Any]] = trial.plan["probes"]
        self._tried: set[str] = set()
        self._waiting, self._full = 0, False
        """Calls that were not judged yet, and whether they take as much of the judge's memory as they may."""

    def make(self) -> None:
        """Every call of the plan, then calls whose outputs are all kept, then the weights and a look at the process.

        On a CPU each call is judged while the next one is made. On a GPU, where judging takes longer than the calls, it
        is left for :meth:`judge_some`, except for what is too large to be kept.
        """
        leave = set(self.trial.leave)
        calls = _Calls(self.trial, [i for i in range(len(self.probes)) if i not in leave])
        with self.judged_first():
            while (i := calls.next()) is not None:
                self._make(calls, i)
                while self._waiting and (self._full or not self.trial.on_gpu):
                    self.judge_some(1)
            self._hold()
            for key in self.trial.made():
                self._weights(key)
            self.trial.checkpoint("calls", self.judge_some)

    def judge_some(self, most: int = 4) -> bool:
        """Judge the next calls of those that were made; whether there are more."""
        if self._waiting:
            answer = self._count(self.judge.ask("judge", most=most).body)
            for i, told in answer["told"]:
                self._heard(self.probes[i], told)
        return self._waiting > 0

    def judge_all(self) -> None:
        while self.judge_some():
            self.trial.check()

    @contextlib.contextmanager
    def judged_first(self) -> Iterator[None]:
        """Where the candidate fails inside, the calls that were made before are judged first: see
        ``CandidateFault.settled``.
        """
        try:
            yield
        except CandidateFault as fault:
            if not fault.settled:
                self.judge_all()
            raise

    def _count(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._waiting, self._full = answer["waiting"], answer["full"]
        return answer

    def _make(self, calls: _Calls, i: int) -> None:
        probe = self.probes[i]
        self.trial.check()
        if i % 8 == 0:
            self.progress(f"correctness: call {i + 1} of {len(self.probes)}", i / len(self.probes))
        self._begun(probe["case_id"])
        try:
            claim = calls.made()
        except CandidateFault as fault:
            fault.case = probe["case_id"] or ""
            if probe["may_raise"] and fault.outcome is Outcome.CRASHED and self.trial.child.alive():
                self.trial.warnings.append(f"{probe['why']}: {fault.reason.splitlines()[0][:200]}")
                calls.left_out()
                return
            fault.reason = in_call(fault.reason, probe)
            raise
        laid = calls.laid[0]
        self._count(calls.take(claim))
        self._try_capture(laid, probe["case_id"] or "")
        calls.go_on()

    def _begun(self, case_id: str | None) -> None:
        """So that a case which stays unjudged is not called one that was not reached."""
        case = self.cases.get(case_id or "")
        if case is not None and case.reason == NOT_REACHED:
            self.cases[case.id] = case.model_copy(update={"reason": BEGUN})

    def _heard(self, probe: dict[str, Any], told: dict[str, Any]) -> None:
        """What the judge says of one call."""
        self._note(probe, told)
        if told["ok"]:
            if told.get("strides") and told["strides"] not in self.trial.warnings:
                self.trial.warnings.append(told["strides"])
            if told.get("skipped"):
                self.trial.warnings.append(f"{probe['why']}: {told['skipped']}")
        elif not probe["gating"]:
            self.trial.warnings.append(f"{probe['why']}: {told['note']}")
        else:
            raise wrong(told, probe)

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
            ticket = self.trial.post({"do": "hold", **laid})
            limit = max(limits.call_s, limits.first_call_s)
            claim = self.trial.collect_beside(ticket, "hold", HoldClaim, self.judge_some, timeout_s=limit)
        except CandidateFault as fault:
            if not fault.judged:
                fault.reason = in_call(fault.reason, probe)
            raise
        told = self.judge.ask("judge_hold", shared=claim.shared).body
        if not told["ok"]:
            self.judge_all()
            raise wrong(told, probe)

    def _weights(self, key: str) -> None:
        places = self.judge.ask("state", key=key).body["places"]
        if not places:
            return
        claim = self.trial.ask({"do": "state", "key": key, "places": places}, StateClaim)
        told = self.judge.ask("judge_state", key=key, copied=claim.copied).body
        if not told["ok"]:
            self.judge_all()
            evidence = Evidence(kind="state_mutation", what=told["note"], instead=INSTEAD["state_mutation"])
            raise CandidateFault(Outcome.MUTATED, told["note"], [evidence])


class _Calls:
    """Some calls of a plan, in order. The judge lays them out, at most two ahead, while the candidate makes one."""

    def __init__(self, trial: Trial, wanted: list[int]) -> None:
        self.trial, self.judge = trial, trial.judge
        self.rest = collections.deque(wanted)
        self.laid: collections.deque[dict[str, Any]] = collections.deque()
        self.ticket: tuple[int, int] | None = None
        self.posted = 0.0
        self.fault: CandidateFault | None = None
        """That of the call that was to be posted: it counts when its turn comes."""
        self._lay(None)

    def _lay(self, skip: int | None) -> None:
        """Have the judge lay out what follows, as far as there is room. ``skip``: a call that was not made."""
        following = list(itertools.islice(self.rest, 2 - len(self.laid)))
        if not following and skip is None:
            return
        for laid in self.judge.ask("lay", lay=following, skip=skip).body["laid"]:
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

    def take(self, claim: CallClaim) -> dict[str, Any]:
        """Have the judge copy what it left: the candidate's code, which could still write there, runs only after this.
        Gives what waits to be judged.
        """
        seq = self.laid.popleft()["seq"]
        return self.judge.ask("take", i=seq, **claim.model_dump(exclude_none=True)).body

    def go_on(self) -> None:
        """Have the next call made, and meanwhile the one behind it laid out."""
        if self.laid:
            try:
                self.ticket = self._post(self.laid[0])
            except CandidateFault as fault:
                self.fault = fault
        self._lay(None)

    def left_out(self) -> None:
        """It raised, as it may."""
        self.fault = None
        self._lay(self.laid.popleft()["seq"])

    def _post(self, laid: dict[str, Any]) -> tuple[int, int]:
        self.trial.make(laid["key"])
        self.posted = time.monotonic()
        return self.trial.post({"do": "call", **laid})


def _most(one: float | None, other: float | None) -> float | None:
    found = [v for v in (one, other) if v is not None]
    return max(found) if found else None
