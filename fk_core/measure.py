"""Timing a candidate against the baseline: whose turn it is, when to stop, and who is believed.

Both sides sit in processes of their own and take turns in ABBA or BAAB order. On a GPU a turn replays captured graphs
(``fk_core.child.timing``); on a CPU, and for what can't be captured, it runs calls and this process's clock times them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fk_core import stopping
from fk_core.audits import Audits
from fk_core.child.wire import Frame
from fk_core.eager import EagerTimer
from fk_core.fault import CandidateFault, host_fault, stream_fault
from fk_core.gated import GatedTimer
from fk_core.judge_session import JudgeSession
from fk_core.leases.base import Lease, waiting
from fk_core.prepared import Prepared, forged, turn_order
from fk_core.records.claims import CaptureClaim, LayoutClaim, Nothing, PlainTurn
from fk_core.records.task import CaseSpec
from fk_core.settings import Timing
from fk_core.timings import CaseTiming
from fk_core.trial import Progress, Trial

_SHORT_BYTES = 64 << 10
_PIECE = 2
"""Layouts that the baseline's side captures at a time: 10 to 20 ms where calls are shortest."""
_CPU_TURN_S = 0.006
_CPU_BUDGET_S = 0.6
_CPU_ROUNDS = (6, 40)
_CPU_VISITS = 3
_EAGER_TURN_S = 0.004
_EAGER_ROUNDS, _EAGER_LEAST, _EAGER_BUDGET_S = 16, 3, 1.0
_GROUP_BYTES = 48 << 30
"""Captures of so many bytes are in memory together, by a rough estimate."""


@dataclass
class _Laid:
    """A case whose inputs lie ready."""

    case: CaseSpec
    frame: Frame
    order: dict[str, Any]
    seeds: list[tuple[int, int]]
    asked: int = 0
    """For how many of the seeds the baseline's side was asked to capture."""
    graph_baseline: bool = False
    layouts: list[LayoutClaim] = field(default_factory=list)
    """The baseline's captures: the same seeds give the candidate the same calls in the same order."""

    @property
    def captured(self) -> bool:
        """Whether the baseline's side has nothing more to capture."""
        return self.asked == len(self.seeds)


class Stopwatch:
    """Times all cases of one trial."""

    def __init__(
        self,
        trial: Trial,
        judge: JudgeSession,
        timing: Timing,
        floor: float,
        cpu: bool,
        progress: Progress,
        throttled: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """``throttled`` names what holds the device's clocks down at the moment; such a case is timed once more."""
        self.trial, self.judge, self.t, self.floor, self.cpu = trial, judge, timing, floor, cpu
        self.progress, self.random, self.throttled = progress, trial.random, throttled
        self._keys: dict[str, str] = {}
        self._groups: list[list[CaseSpec]] = []
        self._laid: list[_Laid] = []
        self._prepared: list[Prepared] = []
        self.audits = Audits(trial, judge)

    def plan(self, cases: list[CaseSpec], keys: dict[str, str]) -> None:
        """Group the cases by memory, and lay out those of the first group."""
        self._keys = keys
        self._groups = [cases] if self.cpu else _groups(cases)
        self._lay_out(self._groups[0])

    def baseline(self) -> bool:
        """Capture a few more layouts of the baseline's side, of the next case that is laid out; whether there were any.

        Not a whole case at a time, which takes up to 0.1 s: whoever waits for the candidate would wait for that.
        """
        for laid in self._laid:
            if not laid.captured:
                self._capture_baseline(laid, _PIECE)
                return True
        return False

    def capture(self, work: Callable[[], bool]) -> None:
        """Capture the candidate's calls of the first group, where there is a GPU to capture them for. ``work`` is done
        meanwhile, as long as it says that there is more.
        """
        if not self.cpu:
            self._prepared = self._prepare_all(work)

    def all_cases(self, lease: Lease) -> list[CaseTiming]:
        """Time all cases under the exclusive lease, group by group, and capture those of later groups under the shared
        one. What the last group's calls left is judged later: see ``audits``.
        """
        done: list[Prepared] = []
        prepared = self._prepared
        for number, group in enumerate(self._groups):
            self.trial.check()
            if number:
                self._give_up(prepared)
                self._lay_out(group)
            if number or self.cpu:
                prepared = self._prepare_all(_no_work)
            with exclusive(lease, self.trial, self.progress):
                if self.cpu:
                    self._time_cpu(prepared)
                else:
                    self.judge.ask("settle")
                    for p in prepared:
                        self.progress(f"timing {p.timing.case.id}", number / len(self._groups))
                        self.time(p)
            if not self.cpu:
                for p in prepared:
                    p.timing.floor_us = self.judge.ask("floor", case=p.timing.case.id).body["floor_us"]
            done += prepared
        return [p.timing for p in done]

    def _give_up(self, done: list[Prepared]) -> None:
        """Give back what timed cases hold on either side, for those that follow."""
        self.audits.judge_all()
        for p in done:
            self.judge.ask("drop", case=p.timing.case.id)
            self.trial.ask({"do": "drop", "case": p.timing.case.id}, Nothing)

    def close(self) -> None:
        """Give up the descriptors of what was laid out and nobody took."""
        for laid in self._laid:
            laid.frame.close_fds()

    # -- preparing -------------------------------------------------------------------------------------------------

    def _lay_out(self, cases: list[CaseSpec]) -> None:
        """Inputs of these cases, for both sides."""
        t = self.t
        self._laid = []
        for case in cases:
            frame = self.judge.ask(
                "timing", case=case.id, layouts=max(t.layouts, t.short_layouts), batch_us=t.batch_us, most=t.calls
            )
            order = frame.body["order"]
            layouts = min(t.layouts, max(t.least_layouts, t.captured_calls // order["calls"]))
            if order["block"] <= _SHORT_BYTES:
                layouts = t.short_layouts
            seeds = [(self.random.getrandbits(30), self.random.getrandbits(24)) for _ in range(layouts)]
            self._laid.append(_Laid(case, frame, order, seeds))

    def _capture_baseline(self, laid: _Laid, most: int) -> None:
        """Capture so many layouts more of the baseline's side."""
        seeds = laid.seeds[laid.asked : laid.asked + most]
        do = "layouts" if laid.asked else "time"
        laid.asked += len(seeds)
        told = self.judge.ask(do, case=laid.case.id, **self._captures(seeds, gates=self.t.gate_layouts)).body
        laid.graph_baseline = bool(told["capturable"])
        if laid.graph_baseline:
            laid.layouts += [LayoutClaim.model_validate(row) for row in told["layouts"]]
        else:
            laid.asked, laid.layouts = len(laid.seeds), []

    def _captures(self, seeds: list[tuple[int, int]], *, gates: int) -> dict[str, Any]:
        """What a side is told to capture."""
        return {"seeds": seeds, "plain": self.t.plain_layouts, "gates": gates}

    def _prepare_all(self, work: Callable[[], bool]) -> list[Prepared]:
        """The candidate's side of what is laid out. A case is audited while the next one is captured."""
        prepared = []
        try:
            for laid in self._laid:
                p = self._prepare(laid, work)
                prepared.append(p)
                if p.layouts:
                    self.audits.replay(p)
            self.audits.judge_all()
        except CandidateFault as fault:
            if not fault.settled:
                self.audits.judge_all()
            raise
        finally:
            self.close()
        return prepared

    def _prepare(self, laid: _Laid, work: Callable[[], bool]) -> Prepared:
        """The candidate's side of a case, while the judge does what it has to do: audit the case before, capture the
        baseline's side of this one, ``work``, and the baseline's side of those that follow.
        """
        case, order, frame = laid.case, laid.order, laid.frame
        self.trial.make(self._keys[case.id])
        arena = {"do": "arena", "name": f"timing/{case.id}", "size": frame.body["size"]}
        self.trial.ask(arena, Nothing, fds=tuple(frame.fds))
        frame.close_fds()
        ticket = self.trial.post(order | self._captures(laid.seeds, gates=0) | {"inspect": True})

        def meanwhile() -> bool:
            if not self.audits.judge_one() and not laid.captured:
                self._capture_baseline(laid, _PIECE)
                return True
            return work() or self.baseline()

        claim = self.trial.collect_beside(
            ticket, "time", CaptureClaim, meanwhile, timeout_s=self.trial.settings.limits.build_s
        )
        self.audits.judge_all()
        if not laid.captured:
            self._capture_baseline(laid, len(laid.seeds))
        timing = CaseTiming(case, capturable=None if self.cpu else claim.capturable, capture_reason=claim.reason)
        prepared = Prepared(timing, order["calls"], order["block"], laid.seeds)
        prepared.graph_baseline, prepared.results = laid.graph_baseline, order["results"]
        if self.cpu:
            return prepared
        if claim.unjoined:
            raise stream_fault(case.id, claim.reason)
        if claim.capturable:
            self._inspect(claim, laid, prepared)
            if laid.graph_baseline:
                prepared.layouts = laid.layouts
        if not claim.capturable or not laid.graph_baseline:
            self.trial.ask({**order, "do": "eager"}, Nothing)
            self.judge.ask("eager", case=case.id)
        return prepared

    def _inspect(self, claim: CaptureClaim, laid: _Laid, prepared: Prepared) -> None:
        """Refuse what a captured graph must not hold, and captures of other calls than were asked for."""
        for layout in claim.layouts:
            hosts = layout.nodes.get("host", 0)
            if hosts:
                raise host_fault(prepared.timing.case.id, hosts)
        told = [(layout.calls, layout.order) for layout in claim.layouts]
        if len(told) != len(laid.seeds) or (
            laid.graph_baseline and told != [(layout.calls, layout.order) for layout in laid.layouts]
        ):
            raise forged("the captures are not those that were asked for", prepared.timing.case.id)
        prepared.timing.programmatic = any(x.programmatic for x in claim.layouts)

    # -- timing ----------------------------------------------------------------------------------------------------

    def time(self, p: Prepared) -> None:
        """One case on a GPU."""
        self.trial.check()

        def gated(p: Prepared) -> None:
            GatedTimer(self.trial, self.judge, self.t, self.floor, p, self.audits.look).run()

        how = gated if p.layouts and p.graph_baseline else self._time_eager
        how(p)
        reasons = self.throttled()
        if reasons:
            p.timing = p.timing.fresh()
            how(p)
            again = self.throttled()
            held = f"clocks were held down ({', '.join(reasons)})"
            p.timing.notes.append(f"{held}; timed again" + (f", and still: {', '.join(again)}" if again else ""))

    # -- eager -----------------------------------------------------------------------------------------------------

    def _time_cpu(self, prepared: list[Prepared]) -> None:
        """Every case for a while, a few times: what holds a core for a second spoils only a part of each."""
        timers = [
            EagerTimer(self.trial, self.judge, p.timing.case.id, p.calls, _CPU_TURN_S, on_gpu=False) for p in prepared
        ]
        for visit in range(_CPU_VISITS):
            for number, (p, timer) in enumerate(zip(prepared, timers, strict=True)):
                self.trial.check()
                share = (visit + number / len(timers)) / _CPU_VISITS
                self.progress(f"timing {p.timing.case.id}", share)
                began, before = time.monotonic(), len(timer.rounds())
                while True:
                    timer.round()
                    rounds, spent = len(timer.rounds()) - before, (time.monotonic() - began) * _CPU_VISITS
                    enough = rounds * _CPU_VISITS >= _CPU_ROUNDS[0]
                    if enough and (spent > _CPU_BUDGET_S or rounds * _CPU_VISITS >= _CPU_ROUNDS[1]):
                        break
                    if spent > 10 * _CPU_BUDGET_S:
                        break
        for p, timer in zip(prepared, timers, strict=True):
            p.timing.mode, p.timing.stopped_because = "cpu wall", "the CPU budget was spent"
            self._conclude_eager(p.timing, timer.rounds())

    def _time_eager(self, p: Prepared) -> None:
        """What can't be captured runs eagerly by the wall clock; the baseline in a graph, as an engine would run it."""
        timing = p.timing
        timing.mode = "eager"
        timer = EagerTimer(self.trial, self.judge, timing.case.id, p.calls, _EAGER_TURN_S, on_gpu=True)
        graphs: list[float] = []
        began, done = time.monotonic(), 0
        while done < _EAGER_ROUNDS and (done < _EAGER_LEAST or time.monotonic() - began < _EAGER_BUDGET_S):
            timer.round()
            done += 1
            if p.graph_baseline:
                # Warm, as the inputs of eager calls have just been written.
                body = turn_order(p, done % min(self.t.plain_layouts, len(p.seeds)), "warm")
                turn = PlainTurn.model_validate(self.judge.ask(**body).body)
                graphs += [us / turn.calls * 1e-6 for us in turn.plain_us]
        eager = timer.rounds()
        each = len(graphs) // done
        rounds = [(graphs[n * each : (n + 1) * each] or ours, theirs) for n, (ours, theirs) in enumerate(eager)]
        timing.stopped_because = "the budget was spent"
        self._conclude_eager(timing, rounds)
        if timing.estimate is not None:
            timing.eager = stopping.undisturbed(eager)
            if p.graph_baseline:
                timing.notes.append("timed eagerly by the wall clock against the baseline in a CUDA graph")

    def _conclude_eager(self, timing: CaseTiming, rounds: list[stopping.Round]) -> None:
        if len(rounds) < 3:
            timing.reason = "the calls are shorter than what the clock resolves"
            return
        timing.estimate = stopping.undisturbed(rounds)
        timing.baseline_us, timing.candidate_us = (stopping.lowest(rounds, side) * 1e6 for side in (0, 1))


def _no_work() -> bool:
    return False


@contextlib.contextmanager
def exclusive(lease: Lease, trial: Trial, progress: Progress) -> Iterator[None]:
    """Hold the device alone for a while."""
    lease.upgrade(
        "exclusive", cancel=trial.cancel, on_wait=lambda place, holders: progress(waiting(place, holders), None)
    )
    try:
        yield
    finally:
        lease.downgrade()


def _groups(cases: list[CaseSpec]) -> list[list[CaseSpec]]:
    """Cases whose captures fit in memory together, by a rough size: elements, times 8 bytes, 4 slots and 12 layouts.
    Cases with more layouts have small inputs.
    """
    groups: list[list[CaseSpec]] = [[]]
    used = 0
    for case in cases:
        need = math.prod(case.dims.values()) * 8 * 4 * 12
        if groups[-1] and used + need > _GROUP_BYTES:
            groups.append([])
            used = 0
        groups[-1].append(case)
        used += need
    return groups
