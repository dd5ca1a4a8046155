"""One candidate on trial: build it, have it called, and put what it says into words the verdict can use."""

from __future__ import annotations

import collections
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fk_core.child import wire
from fk_core.cpu_clock import cpu_seconds
from fk_core.domain import EVERYTHING
from fk_core.errors import Cancelled
from fk_core.judge_session import JudgeSession
from fk_core.records.claims import (
    CallClaim,
    Claim,
    ContractClaim,
    ExceptionClaim,
    FindingClaim,
    Findings,
    HoldClaim,
    Nothing,
    StateClaim,
    TryClaim,
)
from fk_core.records.report import CaseReport, Evidence, Mismatch, Outcome
from fk_core.sandbox.launch import Child, ChildGone
from fk_core.settings import Settings

T = TypeVar("T", bound=Claim)
Progress = Callable[[str, float | None], None]
_FIRST_CALLS = 4
_LEAST_WAIT_S = 0.1
_HELD_CALLS = (72, 96)
"""How many calls are made whose outputs are all kept; drawn anew each time."""
_SLOW_S = 0.25
"""Of held calls of the smallest shape: an interpreted kernel takes longer."""


class CandidateFault(Exception):
    """The candidate failed; this ends its trial."""

    def __init__(self, outcome: Outcome, reason: str, evidence: list[Evidence] | None = None, case: str = "") -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.evidence, self.case = outcome, reason, evidence or [], case
        self.mismatch: Mismatch | None = None
        self.judged: dict[str, Any] = {}


class Trial:
    """Holds the candidate's process. ``ask`` checks the form of every answer and turns failures into faults."""

    def __init__(
        self, child: Child, scratch: Path, judge: JudgeSession, settings: Settings, cancel: threading.Event | None
    ) -> None:
        self.child, self.scratch, self.judge, self.settings, self.cancel = child, scratch, judge, settings, cancel
        self.warnings: list[str] = []
        self.plan: dict[str, Any] = {}
        self.random = random.Random(os.urandom(16))
        self.domain = EVERYTHING
        """What the candidate says it supports: calls outside it are not made."""
        self.before_make: Callable[[str], None] | None = None
        """Called with the key of a module that is about to be made."""
        self._made: set[str] = set()
        self._tried: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self.on_gpu = not judge.desk.cpu
        self.detail: collections.defaultdict[str, float] = collections.defaultdict(float)
        """Seconds that the parent waited for the candidate, by what it was doing."""

    def cpu_seconds(self) -> tuple[float, frozenset[int]]:
        """CPU time of the candidate's processes until now, by the kernel's count, and their ids."""
        return cpu_seconds(self.child.keeper)

    # -- talking ---------------------------------------------------------------------------------------------------

    def ask(
        self, body: dict[str, Any], claim: type[T], *, timeout_s: float | None = None, fds: tuple[int, ...] = ()
    ) -> T:
        return self._read(self._ask(body, timeout_s, fds), claim, body["do"])

    def post(self, body: dict[str, Any]) -> tuple[int, int]:
        try:
            return self.child.channel.post(body)
        except wire.Closed as error:
            self.child.wait(2.0)
            raise self._gone(self.child.gone("the process ended"), body["do"]) from error

    def collect(self, ticket: tuple[int, int], do: str, claim: type[T], *, timeout_s: float | None = None) -> T:
        limit = timeout_s or self.settings.limits.call_s
        began = time.monotonic()
        try:
            frame = self.child.channel.answer(*ticket, timeout_s=limit)
        except wire.TimedOut as error:
            raise self._late(do, limit) from error
        except wire.Closed as error:
            self.child.wait(2.0)
            raise self._gone(self.child.gone("the process ended"), do) from error
        except wire.ProtocolError as error:
            raise self._forged(str(error)) from error
        finally:
            self.detail[f"candidate {do}"] += time.monotonic() - began
        return self._read(frame, claim, do)

    def _ask(self, body: dict[str, Any], timeout_s: float | None, fds: tuple[int, ...]) -> wire.Frame:
        limit = timeout_s or self.settings.limits.call_s
        began = time.monotonic()
        try:
            return self.child.ask(body, limit, fds)
        except ChildGone as error:
            raise self._gone(error, body["do"]) from error
        except wire.TimedOut as error:
            raise self._late(body["do"], limit) from error
        except wire.ProtocolError as error:
            raise self._forged(str(error)) from error
        finally:
            self.detail[f"candidate {body['do']}"] += time.monotonic() - began

    def _read(self, frame: wire.Frame, claim: type[T], do: str) -> T:
        for fd in frame.fds:
            os.close(fd)
        try:
            if frame.kind == wire.ERROR:
                raise self._raised(frame.body, do)
            return claim.model_validate(frame.body)
        except ValidationError as error:
            raise self._forged(f"malformed answer to {do!r}: {error.errors()[0]['msg']}") from error

    def _raised(self, body: dict[str, Any], do: str) -> CandidateFault:
        if "contract" in body:
            said = ContractClaim.model_validate(body).contract[:2000]
            return CandidateFault(Outcome.CONTRACT_BROKEN, said.encode("utf-8", "replace").decode("utf-8"))
        told = ExceptionClaim.model_validate(body.get("exception"))
        evidence = self._weigh(told.findings)
        text = f"{told.type}: {told.message}" + (f" ({told.where})" if told.where else "")
        if evidence:
            return CandidateFault(_outcome_of(evidence), f"{evidence[0].what}; then {text}", evidence)
        if (
            told.type == "MemoryError"
            or "CUDA out of memory" in told.message
            or "can't allocate memory" in told.message
        ):
            return CandidateFault(Outcome.OVER_LIMIT, f"out of memory: {text}")
        if do == "load":
            return CandidateFault(Outcome.BUILD_FAILED, f"importing the file raised {text}\n{told.trace}")
        return CandidateFault(Outcome.CRASHED, f"{_doing(do)} raised {text}\n{told.trace}")

    def _gone(self, error: ChildGone, do: str) -> CandidateFault | Cancelled:
        if self.cancel is not None and self.cancel.is_set():
            return Cancelled("cancelled by the caller")
        said = _last_lines(error.log_tail)
        if error.over_limit:
            return CandidateFault(
                Outcome.OVER_LIMIT, f"the process went over its limit on {error.over_limit} while {_doing(do)}"
            )
        where = f" Its last output: {said}" if said else ""
        return CandidateFault(
            Outcome.CRASHED, f"the process ended ({error.exit_status}) while {_doing(do)}, with no answer.{where}"
        )

    def _late(self, do: str, limit: float) -> CandidateFault:
        self.child.kill()
        return CandidateFault(Outcome.TIMED_OUT, f"{_doing(do)} took longer than {limit:.0f} s")

    def _forged(self, what: str) -> CandidateFault:
        self.child.kill()
        evidence = Evidence(
            kind="protocol",
            what=f"something else than the harness's own runner wrote to the result channel: {what}",
            instead="return results from forward; never write to descriptors that the file did not open",
        )
        return CandidateFault(Outcome.TAMPERED, evidence.what, [evidence])

    def _weigh(self, findings: list[FindingClaim]) -> list[Evidence]:
        """Findings that reject; those that only look odd become warnings."""
        evidence = []
        for f in findings:
            if f.severity == "warn":
                # Every checkpoint tells everything again: what has been told is remembered here, out of reach.
                if (f.kind, f.what) not in self._told:
                    self._told.add((f.kind, f.what))
                    self.warnings.append(f"{f.kind}: {f.what}" + (f" ({f.where})" if f.where else ""))
            else:
                kind = "policy" if f.severity == "policy" else f.kind
                evidence.append(Evidence(kind=kind, what=f.what, where=f.where, instead=f.instead))
        return evidence

    def finish(self) -> None:
        """The last look at the process: findings, and whether it said anything that nobody asked for."""
        self.weigh(self.ask({"do": "checkpoint", "where": "final"}, Findings))
        if self.child.channel.pending():
            raise self._forged("bytes wait that answer no question")

    def weigh(self, findings: Findings) -> None:
        evidence = self._weigh(findings.findings)
        if evidence:
            raise CandidateFault(_outcome_of(evidence), evidence[0].what, evidence)

    # -- the trial -------------------------------------------------------------------------------------------------

    def begin_load(self, entries: list[str]) -> list[tuple[str, tuple[int, int]]]:
        """Have the device context started and the file imported, without waiting for either."""
        context = self.post({"do": "context"})
        return [("context", context), ("load", self.post({"do": "load", "entries": entries}))]

    def end_load(self, tickets: list[tuple[str, tuple[int, int]]]) -> None:
        """Wait for what :meth:`begin_load` asked for; both count as building."""
        build_s = self.settings.limits.build_s
        (_, context), (_, load) = tickets
        self.collect(context, "context", Nothing, timeout_s=120.0)
        self.weigh(self.collect(load, "load", Findings, timeout_s=build_s))

    def open(self, opened: wire.Frame) -> None:
        """Take what the judge laid out: the plan, and the arena that inputs and outputs go through."""
        self.plan = opened.body
        try:
            arena = {"do": "arena", "name": "main", "size": self.plan["arena"]["size"]}
            self.ask(arena, Nothing, fds=tuple(opened.fds))
        finally:
            opened.close_fds()

    def make(self, key: str) -> None:
        if key not in self._made:
            if self.before_make is not None:
                self.before_make(key)
            recipe = next(m for m in self.plan["modules"] if m["key"] == key)
            self.ask({"do": "make", **recipe}, Nothing, timeout_s=self.settings.limits.build_s)
            self._made.add(key)

    def correctness(self, cases: dict[str, CaseReport], progress: Progress) -> None:
        """Every call of the plan, judged; raises at the first one that rejects. Fills errors into ``cases``.

        A call is made while the one before it is judged, where the judge has laid it out by then.
        """
        probes = self.plan["probes"]
        calls = _Calls(self, [i for i, probe in enumerate(probes) if self._wanted(probe)])
        while (i := calls.next()) is not None:
            probe = probes[i]
            if self.cancel is not None and self.cancel.is_set():
                raise Cancelled("cancelled by the caller")
            if i % 8 == 0:
                progress(f"correctness: call {i + 1} of {len(probes)}", i / len(probes))
            try:
                claim = calls.made()
            except CandidateFault as fault:
                fault.case = probe["case_id"] or ""
                if probe["may_raise"] and fault.outcome is Outcome.CRASHED and self.child.alive():
                    self.warnings.append(f"{probe['why']}: {fault.reason.splitlines()[0][:200]}")
                    calls.left_out()
                    continue
                fault.reason = _in_call(fault.reason, probe)
                raise
            self._try_capture(calls.laid[0], probe["case_id"] or "")
            told = calls.judged(claim)
            self._note(cases, probe, told)
            if told["ok"]:
                if told.get("skipped"):
                    self.warnings.append(f"{probe['why']}: {told['skipped']}")
                continue
            if not probe["gating"]:
                self.warnings.append(f"{probe['why']}: {told['note']}")
                continue
            raise self._wrong(told, probe)
        self._hold(progress)
        for key in sorted(self._made):
            self._weights(key)
        self.weigh(self.ask({"do": "checkpoint", "where": "calls"}, Findings))

    def _hold(self, progress: Progress) -> None:
        """Many calls of a small shape whose outputs all stay alive: for every form on a GPU, else one of each class. As
        many of a larger shape follow, on a CPU only behind kernels that are not interpreted.
        """
        numbers: dict[tuple[str, str, bool], int] = {}
        for number, shape in enumerate(self.plan["holds"]):
            if self.domain.covers(shape["dims"], shape["dtype"]):
                numbers.setdefault((shape["entry"], shape["form"], shape["large"]), number)
        chosen = [(entry, form) for entry, form, large in numbers if not large]
        if not self.on_gpu:
            self.random.shuffle(chosen)
            chosen = list({which[0]: which for which in chosen}.values())
        for which in chosen:
            began = time.monotonic()
            for large in (False, True):
                found = numbers.get((*which, large))
                slow = large and not self.on_gpu and time.monotonic() - began > _SLOW_S
                if found is None or slow:
                    continue
                if self.cancel is not None and self.cancel.is_set():
                    raise Cancelled("cancelled by the caller")
                progress("correctness: calls whose outputs are all kept", 1.0)
                self._hold_one(self.plan["holds"][found], found)

    def _hold_one(self, shape: dict[str, Any], number: int) -> None:
        calls = self.random.randint(*_HELD_CALLS)
        probe = {**shape, "case_id": None, "why": f"{calls} calls whose outputs are all kept"}
        limits = self.settings.limits
        self.make(shape["key"])
        laid = self.judge.ask("hold", number=number, calls=calls).body
        try:
            claim = self.ask({"do": "hold", **laid}, HoldClaim, timeout_s=max(limits.call_s, limits.first_call_s))
        except CandidateFault as fault:
            fault.reason = _in_call(fault.reason, probe)
            raise
        told = self.judge.ask("judge_hold", shared=claim.shared).body
        if not told["ok"]:
            raise self._wrong(told, probe)

    def _wanted(self, probe: dict[str, Any]) -> bool:
        """Whether a call is made: outside its domain an engine would run the baseline in the candidate's place."""
        if not self.domain.covers(probe["dims"], probe["dtype"]):
            return False
        return probe["unless"] is None or not self._wanted(self.plan["probes"][probe["unless"]])

    def _try_capture(self, laid: dict[str, Any], case: str) -> None:
        """Capture one call of each module on a GPU: work that is left on another stream, or runs on the CPU, is seen
        before it can race.
        """
        if not self.on_gpu or laid["key"] in self._tried:
            return
        claim = self.ask({"do": "try", "key": laid["key"], "inputs": laid["inputs"]}, TryClaim)
        self._tried.add(laid["key"])
        if claim.unjoined:
            raise stream_fault(case, claim.reason)
        if claim.nodes.get("host"):
            raise host_fault(case, claim.nodes["host"])

    def _note(self, cases: dict[str, CaseReport], probe: dict[str, Any], told: dict[str, Any]) -> None:
        case = cases.get(probe["case_id"] or "")
        if case is None:
            return
        cases[case.id] = case.model_copy(
            update={
                name: _most(getattr(case, name), told.get(name))
                for name in ("max_abs_error", "max_error_ratio", "baseline_error_ratio")
            }
        )

    def _wrong(self, told: dict[str, Any], probe: dict[str, Any]) -> CandidateFault:
        judged = told.get("judgement") or {}
        outcome = Outcome(told["outcome"])
        reason = f"{describe(probe)}: {told.get('output') or 'output'}: {explain(told)}"
        evidence = []
        if outcome in (Outcome.MUTATED, Outcome.TAMPERED):
            kind = told.get("kind") or ("input_mutation" if outcome is Outcome.MUTATED else "lazy_output")
            evidence = [Evidence(kind=kind, what=reason, instead=_INSTEAD.get(kind, ""))]
        fault = CandidateFault(outcome, reason, evidence, probe["case_id"] or "")
        fault.judged = told
        first = judged.get("first_mismatch")
        # The report has no case for a hidden shape, so the mismatch says itself where it was.
        elsewhere = "" if probe["case_id"] else describe(probe)
        if first:
            fault.mismatch = Mismatch(
                output=told.get("output") or judged.get("name", ""),
                index=[int(n) for n in first.get("index", [])],
                expected=_number(first.get("expected")),
                got=_number(first.get("got")),
                share_wrong=judged.get("share_wrong"),
                pattern=judged.get("pattern", ""),
                note="; ".join(str(note) for note in (elsewhere, first.get("note") or judged.get("note")) if note),
            )
        return fault

    def _weights(self, key: str) -> None:
        places = self.judge.ask("state", key=key).body["places"]
        if not places:
            return
        claim = self.ask({"do": "state", "key": key, "places": places}, StateClaim)
        told = self.judge.ask("judge_state", key=key, copied=claim.copied).body
        if not told["ok"]:
            evidence = Evidence(kind="state_mutation", what=told["note"], instead=_INSTEAD["state_mutation"])
            raise CandidateFault(Outcome.MUTATED, told["note"], [evidence])


class _Calls:
    """The calls of a plan in order. The judge lays them out, at most two ahead of what it has judged; the next one is
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
        self._take(self.judge.ask("lay", lay=self._following(), drop=None))

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
        self._take(self.judge.ask("lay", lay=self._following(), drop=seq))

    def _post(self, laid: dict[str, Any]) -> tuple[int, int]:
        self.trial.make(laid["key"])
        self.posted = time.monotonic()
        return self.trial.post({"do": "call", **laid})


_INSTEAD = {
    "input_mutation": "allocate the output; only arguments that the contract lists may be written to",
    "output_alias": "allocate the output anew in every call, or return memory that the contract lists as an alias",
    "state_mutation": "leave parameters and buffers as they are; keep repacked copies in non-persistent buffers",
    "lazy_output": "return plain torch.Tensor objects whose values are computed when forward returns",
}


def stream_fault(case: str, reason: str) -> CandidateFault:
    what = f"work was left running on another stream when forward returned: {reason}"
    evidence = Evidence(
        kind="stream_escape",
        what=what,
        instead="launch on the current stream, or make it wait for the side stream before returning",
    )
    return CandidateFault(Outcome.TAMPERED, what, [evidence], case)


def host_fault(case: str, nodes: int) -> CandidateFault:
    what = f"the captured graph holds {nodes} host nodes, which run code on the CPU between kernels"
    evidence = Evidence(kind="host_node", what=what, instead="do the work in kernels on the current stream")
    return CandidateFault(Outcome.TAMPERED, what, [evidence], case)


def describe(probe: dict[str, Any]) -> str:
    dims = ", ".join(f"{k}={v}" for k, v in probe["dims"].items())
    return f"{probe['why']} ({dims}, {probe['dtype']})"


def _in_call(reason: str, probe: dict[str, Any]) -> str:
    """The call stands in the first line, which is all that a summary shows."""
    head, newline, rest = reason.partition("\n")
    return f"{head}; the call: {describe(probe)}{newline}{rest}"


def explain(told: dict[str, Any]) -> str:
    """One sentence on a wrong output: first wrong index, expected and got, share, pattern."""
    judged = told.get("judgement") or {}
    first = judged.get("first_mismatch")
    note = told.get("note") or judged.get("note") or ""
    if not first:
        return str(note or told["outcome"])
    share = judged.get("share_wrong")
    where = "largest error at" if first.get("worst") else "first wrong at"
    # What is not finite stands in the note, as "expected is NaN".
    special = dict(part.split(" is ", 1) for part in str(first.get("note", "")).split("; ") if " is " in part)
    values = {key: first.get(key, None) for key in ("expected", "got")}
    said = ", ".join(f"{key} {special.get(key) if value is None else shown(value)}" for key, value in values.items())
    parts = [f"{where} {first.get('index')}: {said}"]
    if share is not None and not str(judged.get("pattern", "")).startswith("all elements"):
        parts.append(f"{100 * share:.3g}% of the elements wrong")
    if judged.get("pattern"):
        parts.append(str(judged["pattern"]))
    if judged.get("max_error_ratio") is not None:
        parts.append(f"error ratio {judged['max_error_ratio']:.3g}, at most {told['limit']:g} is right")
    if note:
        parts.append(str(note))
    return "; ".join(parts)


def shown(value: Any) -> str:
    """A number with the digits that a float32 has."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _outcome_of(evidence: list[Evidence]) -> Outcome:
    return Outcome.POLICY if all(e.kind == "policy" for e in evidence) else Outcome.TAMPERED


def _doing(do: str) -> str:
    return {
        "load": "importing the file",
        "make": "constructing the module",
        "call": "calling forward",
        "hold": "calling forward many times",
        "time": "capturing the calls for timing",
        "turn": "replaying the captured calls",
        "loop": "running the timed calls",
        "context": "starting the device context",
    }.get(do, f"answering {do!r}")


def _last_lines(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-3:])[:400]


def _most(one: float | None, other: float | None) -> float | None:
    found = [v for v in (one, other) if v is not None]
    return max(found) if found else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
