"""One candidate on trial: its process is asked, and what it answers is checked and put into the verdict's words."""

from __future__ import annotations

import collections
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fk_core.child import wire
from fk_core.cpu_clock import Crowd, cpu_seconds
from fk_core.domain import EVERYTHING
from fk_core.errors import Cancelled
from fk_core.fault import CandidateFault, outcome_of
from fk_core.judge_session import JudgeSession, Ticket
from fk_core.records.claims import Claim, ContractClaim, ExceptionClaim, FindingClaim, Findings, Nothing
from fk_core.records.report import Evidence, Outcome
from fk_core.sandbox.launch import Child, ChildGone
from fk_core.settings import Settings

T = TypeVar("T", bound=Claim)
Progress = Callable[[str, float | None], None]
_AHEAD = 4
"""Calls that the judge works out at a time: about 5 ms."""
_INTERPRETER_FILE = "triton/runtime/interpreter"
_INTERPRETED = (
    ". On a CPU kernels run in Triton's interpreter, which does not know everything that the compiler does:"
    " a run on a GPU settles it"
)


class Trial:
    """Holds the candidate's process. ``ask`` checks the form of every answer and turns failures into faults."""

    def __init__(
        self, child: Child, scratch: Path, judge: JudgeSession, settings: Settings, cancel: threading.Event | None
    ) -> None:
        self.child, self.scratch, self.judge, self.settings, self.cancel = child, scratch, judge, settings, cancel
        self.warnings: list[str] = []
        self.plan: dict[str, Any] = {}
        self.crowd = Crowd()
        """Who else used the CPUs while calls were timed by this process's clock."""
        self.random = random.Random(os.urandom(16))
        self.domain = EVERYTHING
        """What the candidate says it supports: calls outside it are not made."""
        self.leave: list[int] = []
        """Numbers of the calls of the plan that will not be made."""
        self.before_make: Callable[[str], None] | None = None
        """Called with the key of a module that is about to be made."""
        self._made: set[str] = set()
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

    def post(self, body: dict[str, Any]) -> Ticket:
        try:
            return self.child.channel.post(body)
        except wire.Closed as error:
            self.child.wait(2.0)
            raise self._gone(self.child.gone("the process ended"), body["do"]) from error

    def collect(self, ticket: Ticket, do: str, claim: type[T], *, timeout_s: float | None = None) -> T:
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

    def collect_beside(
        self, ticket: Ticket, do: str, claim: type[T], work: Callable[[], bool], *, timeout_s: float
    ) -> T:
        """:meth:`collect`, with ``work`` done as long as there is no answer and it says that there is more."""
        while self._silent() and work():
            self.check()
        return self.collect(ticket, do, claim, timeout_s=timeout_s)

    def _silent(self) -> bool:
        try:
            return not self.child.channel.pending()
        except wire.Closed:
            return False  # whoever asks for the answer is told so

    def ahead(self, *, answers: bool) -> bool:
        """Have the judge draw the inputs of a few calls before they are made, or work out what is right for them.

        Says whether there may be more. On a CPU there is nothing to gain: it would take the core from the candidate.
        """
        if not self.on_gpu:
            return False
        return bool(self.judge.ask("ahead", most=_AHEAD, answers=answers, leave=self.leave).body["more"])

    def check(self) -> None:
        """Raises ``Cancelled`` where the caller has cancelled."""
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("cancelled by the caller")

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
        text = f"{told.type}: {_gist(told.message)}" + (f" ({told.where})" if told.where else "")
        more = told.trace if _gist(told.message) == told.message.strip() else f"{told.message}\n{told.trace}"
        if evidence:
            return CandidateFault(outcome_of(evidence), f"{evidence[0].what}; then {text}", evidence)
        if (
            told.type == "MemoryError"
            or "CUDA out of memory" in told.message
            or "can't allocate memory" in told.message
        ):
            allowed = "" if "CUDA" in told.message else f"; at most {self.settings.limits.amount('memory')} may be used"
            return CandidateFault(Outcome.OVER_LIMIT, f"out of memory: {text}{allowed}\n{more}")
        if do == "load":
            return CandidateFault(Outcome.BUILD_FAILED, f"importing the file raised {text}\n{more}")
        if told.type == "InterpreterError" or _INTERPRETER_FILE in told.trace:
            text += _INTERPRETED
        return CandidateFault(Outcome.CRASHED, f"{_doing(do)} raised {text}\n{more}")

    def _gone(self, error: ChildGone, do: str) -> CandidateFault | Cancelled:
        if self.cancel is not None and self.cancel.is_set():
            return Cancelled("cancelled by the caller")
        said = _last_lines(error.log_tail)
        if error.over_limit:
            amount = self.settings.limits.amount(error.over_limit)
            limit = f"{error.over_limit} ({amount})" if amount else error.over_limit
            return CandidateFault(Outcome.OVER_LIMIT, f"the process went over its limit on {limit} while {_doing(do)}")
        where = f". Its last output: {said}" if said else ""
        return CandidateFault(
            Outcome.CRASHED, f"the process ended ({error.exit_status}) while {_doing(do)}, with no answer{where}"
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

    def checkpoint(self, where: str, work: Callable[[], bool]) -> None:
        """A look at the process, ``work`` meanwhile. Raises where something is found."""
        ticket = self.post({"do": "checkpoint", "where": where})
        limit = self.settings.limits.call_s
        self.weigh(self.collect_beside(ticket, "checkpoint", Findings, work, timeout_s=limit))

    def finish(self, work: Callable[[], bool]) -> None:
        """The last look at the process: findings, and whether it said anything that nobody asked for."""
        self.checkpoint("final", work)
        if self.child.channel.pending():
            raise self._forged("bytes wait that answer no question")

    def weigh(self, findings: Findings) -> None:
        evidence = self._weigh(findings.findings)
        if evidence:
            raise CandidateFault(outcome_of(evidence), evidence[0].what, evidence)

    # -- the trial -------------------------------------------------------------------------------------------------

    def begin_load(self, entries: list[str]) -> tuple[Ticket, Ticket]:
        """Have the device context started and the file imported, without waiting for either."""
        context = self.post({"do": "context"})
        return context, self.post({"do": "load", "entries": entries})

    def end_load(self, tickets: tuple[Ticket, Ticket], work: Callable[[], bool]) -> None:
        """Wait for what :meth:`begin_load` asked for, ``work`` meanwhile; both count as building."""
        build_s = self.settings.limits.build_s
        context, load = tickets
        self.collect_beside(context, "context", Nothing, work, timeout_s=120.0)
        self.weigh(self.collect_beside(load, "load", Findings, work, timeout_s=build_s))

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

    def made(self) -> list[str]:
        """Keys of the modules that were built."""
        return sorted(self._made)


def _gist(message: str) -> str:
    """The first line, and the last one where there are more: compilers end with the cause."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys([lines[0], lines[-1]])) if lines else ""


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
