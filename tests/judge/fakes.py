"""A machine whose truth is known: a clock that moves when somebody works, a candidate and a judge that take turns.

``Side`` says how long things really take; ``Lies`` says what the candidate's process claims instead. The stopwatch sees
the claims, and the clock sees the truth.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fk_core import eager, gated, measure
from fk_core.child.wire import REPLY, Frame
from fk_core.cpu_clock import Crowd
from fk_core.errors import Cancelled
from fk_core.measure import Stopwatch
from fk_core.records.claims import Claim
from fk_core.records.task import CaseSpec
from fk_core.settings import Settings, Timing
from fk_core.timings import CaseTiming
from fk_core.trial import Trial

CALLS = 20
FLUSH_US = 30.0
PIPE_US = 60.0
PATIENCE_S = 20.0
"""Simulated seconds after which a stopwatch that does not stop has failed."""


class Clock:
    """Stands in for the ``time`` module of the stopwatch."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def sleep(self, seconds: float) -> None:
        self.advance(seconds * 1e6)

    def perf_counter(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def advance(self, us: float) -> None:
        self.now_s += us * 1e-6
        if self.now_s > 1000.0 + PATIENCE_S:
            raise AssertionError(f"still timing after {PATIENCE_S:.0f} s")


@dataclass
class Lies:
    """What becomes of an honest answer before it is sent; each takes the answer and may change or replace it."""

    turn: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda body, answer: answer
    loop: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda body, answer: answer
    capture: Callable[[dict[str, Any]], dict[str, Any]] = lambda answer: answer
    held: dict[str, Any] = field(default_factory=lambda: {"aliases": [], "earlier": []})


@dataclass
class Side:
    """How long the calls of one process really take, in microseconds."""

    us: float = 10.0
    gate_us: float = 2.0
    eager_us: float = 25.0
    round_sd: float = 0.001
    bias_sd: float = 0.002
    capturable: bool = True
    empty_us: float = 40.0
    threads: float = 0.9
    """CPU seconds in each second of a loop."""
    slot_us: float = 1.0
    """What the harness itself takes for each call of a loop."""
    idle_us: float = 0.0
    """What a turn without calls takes beyond that."""
    bias: dict[tuple[str, int], float] = field(default_factory=dict)


def layout_of(seed: int, calls: int, *, inspect: bool) -> dict[str, Any]:
    """What both sides capture for one seed: the number of calls and their order follow from it."""
    rng = random.Random(seed)
    count = calls - rng.randrange(0, 1 + calls // 8)
    held = {"nodes": {"kernel": 2 * count}, "programmatic": 0} if inspect else {}
    return {"calls": count, "order": rng.sample(range(count), count)} | held


class Process:
    """The part that candidate and judge have in common: it captures, replays and loops."""

    def __init__(self, clock: Clock, side: Side, rng: random.Random) -> None:
        self.clock, self.side, self.rng = clock, side, rng
        self.layouts: dict[str, list[dict[str, Any]]] = {}
        self.graphs: dict[str, dict[str, int]] = {}
        """Of how many layouts of a case there is a graph of a kind."""
        self.fresh: dict[tuple[str, int], int] = {}
        """What the inputs of the last replay of a case and layout followed from."""
        self.asked: list[dict[str, Any]] = []
        self.cpu_s = 0.0
        self.pids = frozenset({77})
        self.heard: Callable[[dict[str, Any]], None] = lambda body: None

    def capture(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self.side.capturable:
            return {"capturable": False, "reason": "RuntimeError: operation not permitted when stream is capturing"}
        inspect = body.get("inspect", False)  # the real judge is not asked, and does not look
        made = [layout_of(seed, CALLS, inspect=inspect) for seed, _ in body["seeds"]]
        before = self.layouts.get(body["case"], []) if body["do"] == "layouts" else []
        self.layouts[body["case"]] = before + made
        self.graphs[body["case"]] = {"plain": body["plain"], "warm": body["plain"], "gate": body["gates"]}
        return {"capturable": True, "layouts": made}

    def turn(self, body: dict[str, Any]) -> dict[str, Any]:
        side, number = self.side, body["layout"]
        assert number < self.graphs[body["case"]].get(body["kind"], len(self.layouts[body["case"]]))
        calls = self.layouts[body["case"]][number]["calls"]
        bias = side.bias.setdefault((body["case"], number), self.rng.gauss(0.0, side.bias_sd))
        if "fresh" in body:
            self.fresh[body["case"], number] = body["fresh"] + body["timed"] - 1
        name = {"warm": "plain"}.get(body["kind"], body["kind"])
        readings: list[float] = []
        gates = 0 if name == "plain" else calls + 1
        ran_us = 0.0
        for batch in range(body["prime"] + body["timed"]):
            op = side.us * (1 + bias + self.rng.gauss(0.0, side.round_sd))
            took = gates * side.gate_us + (0.0 if name == "gate" else calls * op)
            ran_us += took + FLUSH_US
            if batch >= body["prime"]:
                readings.append(took)
        self.clock.advance(ran_us + PIPE_US * (1 + self.rng.gauss(0.0, 0.05)))
        return {f"{name}_us": readings, "calls": calls}

    def loop(self, body: dict[str, Any]) -> None:
        noise = 1 + self.rng.gauss(0.0, 0.003)
        calls = self.side.idle_us if body["idle"] else len(body["order"]) * self.side.eager_us * noise
        took = self.side.empty_us + len(body["order"]) * self.side.slot_us + calls
        self.clock.advance(took)
        self.cpu_s += took * 1e-6 * self.side.threads


class FakeTrial:
    """Answers what the stopwatch asks a candidate, and checks the form of each answer as the real trial does."""

    def __init__(self, process: Process, lies: Lies, settings: Settings) -> None:
        self.process, self.lies, self.settings = process, lies, settings
        self.random = random.Random(5)
        self.crowd = Crowd()
        self.cancel: threading.Event | None = None
        self.made: list[str] = []
        self.fds: list[int] = []
        self.posted: list[dict[str, Any]] = []
        self.on_post: Callable[[dict[str, Any]], object] = lambda body: None

    def make(self, key: str) -> None:
        self.made.append(key)

    def checkpoint(self, where: str, work: Callable[[], bool]) -> None:
        self.process.heard({"do": "checkpoint", "where": where})

    def cpu_seconds(self) -> tuple[float, frozenset[int]]:
        return self.process.cpu_s, self.process.pids

    def ask(
        self, body: dict[str, Any], claim: type[Claim], *, timeout_s: float | None = None, fds: tuple[int, ...] = ()
    ) -> Claim:
        self.process.asked.append(body)
        self.process.heard(body)
        self.fds += fds
        answer: dict[str, Any] = {}
        if body["do"] == "time":
            answer = self.lies.capture(self.process.capture(body))
        elif body["do"] == "turn":
            answer = self.lies.turn(body, self.process.turn(body))
        elif body["do"] == "loop":
            self.process.loop(body)
            answer = self.lies.loop(body, {"made": len(body["order"])})
        elif body["do"] == "held":
            answer = self.lies.held
        return self._read(answer, claim)

    def post(self, body: dict[str, Any]) -> tuple[int, int]:
        """Answered when it is collected."""
        self.posted.append(body)
        self.on_post(body)
        return 0, len(self.posted)

    def collect_beside(
        self, ticket: tuple[int, int], do: str, claim: type[Claim], work: Callable[[], bool], *, timeout_s: float
    ) -> Claim:
        body = self.posted[ticket[1] - 1]
        assert body["do"] == do
        while work():
            pass
        return self.ask(body, claim, timeout_s=timeout_s)

    def check(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("cancelled by the caller")

    def _read(self, answer: dict[str, Any], claim: type[Claim]) -> Claim:
        try:
            return claim.model_validate(answer)
        except ValueError as error:
            raise Trial._forged(_Headless(), f"malformed answer: {error}") from error  # type: ignore[arg-type]


class _Headless:
    """What ``Trial._forged`` needs of a trial: a child that it can end."""

    class child:
        @staticmethod
        def kill() -> None:
            pass


class FakeJudge:
    """Answers what the stopwatch asks the judge; ``audit`` and ``audit_loop`` find what they are told to find: the
    latter at call ``wrong_loop[0]`` what ``wrong_loop[1]`` says.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.wrong = 0
        self.wrong_loop = (0, "")
        self.shown: dict[tuple[str, int], int] = {}
        self.floor_us: float | None = 1.0
        self.block = 1 << 16
        self.calls = CALLS
        self.given_fds: list[int] = []
        self.wrong_fresh = 0
        self.taken: dict[str, list[dict[str, Any]]] = {}
        """What the judge was told to copy, by case, and has not judged."""

    def ask(self, do: str, *, fds: tuple[int, ...] = (), **body: Any) -> Frame:
        self.process.asked.append({"do": do, **body})
        self.process.heard({"do": do, **body})
        return Frame(REPLY, 0, 0, *self._answer(do, body))

    def _answer(self, do: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        if do == "timing":
            fd = os.open(os.devnull, os.O_RDONLY)
            self.given_fds.append(fd)
            order = {"do": "time", "case": body["case"], "calls": self.calls, "block": self.block, "key": "k"}
            order["results"] = {"at": 1 << 19, "block": 64, "outputs": [{"at": 0, "bytes": 64}]}
            return {"order": order, "size": 1 << 20}, [fd]
        if do in ("time", "layouts"):
            return self.process.capture({"do": do, **body}), []
        if do == "turn":
            return self.process.turn({"do": do, **body}), []
        if do == "loop":
            self.process.loop(body)
        if do == "floor":
            return {"floor_us": self.floor_us}, []
        if do == "memory_use":
            return {"wrong": "", "name": ""}, []
        if do == "audit_loop":
            after, what = self.wrong_loop
            self.wrong_loop = (after - 1, what)
            return {"wrong": what if after <= 0 else "", "name": "y"}, []
        if do == "audit_take":
            if "fresh" in body:
                assert body["fresh"] == self.shown[body["case"], body["layout"]], "what was replayed last is looked at"
            self.taken.setdefault(body["case"], []).append(body)
        if do == "audit":
            if "fresh" in self.taken[body["case"]].pop(0):
                return {"wrong": self.wrong_fresh, "checked": 4}, []
            found = self.wrong
            if body["slots"] != self.process.layouts[body["case"]][body["layout"]]["order"]:
                found = 4
            return {"wrong": found, "checked": 4}, []
        return {}, []


class FakeLease:
    def __init__(self) -> None:
        self.story: list[str] = []

    def upgrade(self, mode: str = "exclusive", **more: Any) -> None:
        self.story.append(mode)

    def downgrade(self) -> None:
        self.story.append("shared")


class Bench:
    """A stopwatch over a fake machine."""

    def __init__(
        self,
        monkeypatch: Any,
        settings: Settings,
        *,
        candidate: Side | None = None,
        baseline: Side | None = None,
        lies: Lies | None = None,
        cpu: bool = False,
        seed: int = 1,
        t: Timing | None = None,
        floor: float = 0.003,
    ) -> None:
        self.clock, rng = Clock(), random.Random(seed)
        for module in (measure, gated, eager):
            monkeypatch.setattr(module, "time", self.clock)
        self.trial = FakeTrial(Process(self.clock, candidate or Side(), rng), lies or Lies(), settings)
        self.judge = FakeJudge(Process(self.clock, baseline or Side(), rng))
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.posted_at: dict[str, int] = {}
        """How much of what concerns a case was asked when the candidate was told to capture this one."""
        self.trial.on_post = lambda body: self.posted_at.setdefault(
            body["case"], sum("case" in asked for _, asked in self.asked)
        )
        self.judge.shown = self.trial.process.fresh
        self.trial.process.heard = lambda body: self.asked.append(("candidate", body))
        self.judge.process.heard = lambda body: self.asked.append(("judge", body))
        self.trial.random = random.Random(seed)
        self.lease = FakeLease()
        self.t = t or Timing()
        self.told: list[str] = []
        self.stopwatch = Stopwatch(
            self.trial,  # type: ignore[arg-type]
            self.judge,  # type: ignore[arg-type]
            self.t,
            floor,
            cpu,
            lambda doing, share: self.told.append(doing),
        )

    def run(self, *names: str, dims: dict[str, int] | None = None) -> list[CaseTiming]:
        cases = [CaseSpec.model_construct(id=n, dims=dims or {"rows": 64}, calls=1) for n in names or ("op/a",)]
        self.stopwatch.plan(cases, {c.id: f"key of {c.id}" for c in cases})
        self.stopwatch.capture(lambda: False)
        found = self.stopwatch.all_cases(self.lease)  # type: ignore[arg-type]
        self.stopwatch.audits.judge_all()
        assert not any(self.judge.taken.values()), "no replay is forgotten"
        return found
