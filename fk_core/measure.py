"""Timing a candidate against the baseline: whose turn it is, when to stop, and who is believed.

Both sides sit in processes of their own and take turns in ABBA or BAAB order. On a GPU a turn replays captured graphs
(``fk_core.child.timing``); on a CPU, and for what can't be captured, it runs calls and this process's clock times them.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fk_core import stopping
from fk_core.child.wire import Frame
from fk_core.eager import EagerTimer, abba
from fk_core.errors import Cancelled
from fk_core.judge_session import JudgeSession
from fk_core.leases.base import Lease
from fk_core.records.claims import CaptureClaim, FullTurn, GatedTurn, LayoutClaim, Nothing, PlainTurn
from fk_core.records.report import Evidence, Outcome
from fk_core.records.task import CaseSpec
from fk_core.settings import Timing
from fk_core.stopping import Estimate
from fk_core.timings import CaseTiming
from fk_core.trial import CandidateFault, Progress, Trial, host_fault, stream_fault

_LARGE_BYTES = 32 << 20
_CPU_TURN_S = 0.006
_CPU_BUDGET_S = 0.6
_CPU_ROUNDS = (6, 40)
_CPU_VISITS = 3
_EAGER_TURN_S = 0.004
_EAGER_ROUNDS, _EAGER_BUDGET_S = 16, 1.0
_PRIME, _TIMED = 1, 2
"""Batches of a turn that warm the clocks, and batches that are timed."""
_GROUP_BYTES = 48 << 30
"""Captures of so many bytes are in memory together, by a rough estimate."""
_USABLE = 0.8
"""Share of the rounds that must have given a positive time for both sides: dropping more would select the good ones."""
_PATIENCE = 3
_GATE_SHARE = 0.02
"""How far a candidate's gate may read from the baseline's: the same kernel over the same bytes in another process."""
_SLACK_US = 60.0
"""Difference of two processes' own overheads in a turn that means nothing."""


@dataclass(frozen=True)
class _Turn:
    """Microseconds a call that one gated turn claims, and what this process's clock saw beyond them."""

    full: float
    gate: float
    wall: float
    calls: int
    """Of a batch, with its prefix."""

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


@dataclass
class _Prepared:
    timing: CaseTiming
    calls: int
    block: int
    seeds: list[tuple[int, int]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    """Where whole outputs go."""
    layouts: list[LayoutClaim] = field(default_factory=list)
    """What both sides captured, as the baseline says it; empty where the case is timed eagerly."""
    graph_baseline: bool = False


@dataclass
class _Laid:
    """A case whose baseline side is ready."""

    case: CaseSpec
    frame: Frame
    order: dict[str, Any]
    seeds: list[tuple[int, int]]
    graph_baseline: bool
    layouts: list[LayoutClaim]
    """The baseline's captures: the same seeds give the candidate the same calls in the same order."""


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

    def plan(self, cases: list[CaseSpec], keys: dict[str, str]) -> None:
        """Group the cases by memory, and lay out and capture the baseline's side of the first group."""
        self._keys = keys
        self._groups = [cases] if self.cpu else _groups(cases)
        self._laid = [self._lay_out(case) for case in self._groups[0]]

    def all_cases(self, lease: Lease) -> list[CaseTiming]:
        """Capture the candidate under the shared lease, time under the exclusive one, group by group."""
        done = []
        for number, group in enumerate(self._groups):
            self._check()
            laid = self._laid if number == 0 else [self._lay_out(case) for case in group]
            try:
                prepared = [self._prepare(one) for one in laid]
            finally:
                for one in laid:
                    one.frame.close_fds()
            with exclusive(lease, self.trial):
                if self.cpu:
                    self._time_cpu(prepared)
                else:
                    self.judge.ask("settle")
                    for p in prepared:
                        self.progress(f"timing {p.timing.case.id}", number / len(self._groups))
                        self.time(p)
            for p in prepared:
                if not self.cpu:
                    p.timing.floor_us = self.judge.ask("floor", case=p.timing.case.id).body["floor_us"]
                if p.layouts:
                    self._audit(p)
                self.judge.ask("drop", case=p.timing.case.id)
                self.trial.ask({"do": "drop", "case": p.timing.case.id}, Nothing)
            done += [p.timing for p in prepared]
        return done

    def close(self) -> None:
        """Give up the descriptors of what :meth:`plan` laid out and nobody took."""
        for laid in self._laid:
            laid.frame.close_fds()

    def _check(self) -> None:
        if self.trial.cancel is not None and self.trial.cancel.is_set():
            raise Cancelled("cancelled by the caller")

    # -- preparing -------------------------------------------------------------------------------------------------

    def _lay_out(self, case: CaseSpec) -> _Laid:
        """The judge's side of a case: inputs for both, and the baseline's captures."""
        frame = self.judge.ask("timing", case=case.id, layouts=self.t.layouts, batch_us=self.t.batch_us)
        order = frame.body["order"]
        layouts = max(3, self.t.layouts // 2) if order["block"] > _LARGE_BYTES else self.t.layouts
        seeds = [(self.random.getrandbits(30), self.random.getrandbits(24)) for _ in range(layouts)]
        baseline = self.judge.ask("time", case=case.id, **self._captures(seeds)).body
        layouts_of = [LayoutClaim.model_validate(row) for row in baseline.get("layouts", [])]
        return _Laid(case, frame, order, seeds, bool(baseline["capturable"]), layouts_of)

    def _captures(self, seeds: list[tuple[int, int]]) -> dict[str, Any]:
        """What both sides are told to capture."""
        return {"seeds": seeds, "plain": self.t.plain_layouts, "prefix": self.t.prefix}

    def _prepare(self, laid: _Laid) -> _Prepared:
        """The candidate's side of a case."""
        case, order, frame = laid.case, laid.order, laid.frame
        try:
            self.trial.make(self._keys[case.id])
            arena = {"do": "arena", "name": f"timing/{case.id}", "size": frame.body["size"]}
            self.trial.ask(arena, Nothing, fds=tuple(frame.fds))
        finally:
            frame.close_fds()
        claim = self.trial.ask(
            order | self._captures(laid.seeds),
            CaptureClaim,
            timeout_s=self.trial.settings.limits.build_s,
        )
        timing = CaseTiming(case, capturable=None if self.cpu else claim.capturable, capture_reason=claim.reason)
        prepared = _Prepared(timing, order["calls"], order["block"], laid.seeds)
        prepared.graph_baseline, prepared.results = laid.graph_baseline, order["results"]
        if self.cpu:
            return prepared
        if claim.unjoined:
            raise stream_fault(case.id, claim.reason)
        if claim.capturable:
            self._inspect(claim, laid, prepared)
            if laid.graph_baseline:
                prepared.layouts = laid.layouts
                self._audit(prepared)
        if not claim.capturable or not laid.graph_baseline:
            self.trial.ask({**order, "do": "eager"}, Nothing)
            self.judge.ask("eager", case=case.id)
        return prepared

    def _inspect(self, claim: CaptureClaim, laid: _Laid, prepared: _Prepared) -> None:
        """Refuse what a captured graph must not hold, and captures of other calls than were asked for."""
        for layout in claim.layouts:
            hosts = layout.nodes.get("host", 0)
            if hosts:
                raise host_fault(prepared.timing.case.id, hosts)
        told = [(layout.calls, layout.order) for layout in claim.layouts]
        if len(told) != len(laid.seeds) or (
            laid.graph_baseline and told != [(layout.calls, layout.order) for layout in laid.layouts]
        ):
            raise _forged("the captures are not those that were asked for", prepared.timing.case.id)
        prepared.timing.programmatic = any(x.programmatic for x in claim.layouts)

    # -- timing ----------------------------------------------------------------------------------------------------

    def time(self, p: _Prepared) -> None:
        """One case on a GPU."""
        self._check()
        how = self._time_gated if p.layouts and p.graph_baseline else self._time_eager
        how(p)
        reasons = self.throttled()
        if reasons:
            p.timing = p.timing.fresh()
            how(p)
            again = self.throttled()
            held = f"clocks were held down ({', '.join(reasons)})"
            p.timing.notes.append(f"{held}; timed again" + (f", and still: {', '.join(again)}" if again else ""))

    def _time_gated(self, p: _Prepared) -> None:
        timing = p.timing
        timing.mode = "gate nodes"
        began = time.monotonic()
        count = len(p.layouts)
        theirs, ours = self._draws(count), self._draws(count)
        for side in ("candidate", "baseline"):
            self._gated(side, p, 0)  # not counted: the device wakes up
        rounds: list[_Round] = []
        while True:
            n = len(rounds)
            pair = {"candidate": theirs[n % count], "baseline": ours[n % count]}
            turns: dict[str, list[_Turn]] = {"candidate": [], "baseline": []}
            for side in abba(self.random):
                turns[side].append(self._gated(side, p, pair[side]))
            rounds.append(_Round(n % count, turns["candidate"], turns["baseline"]))
            stop = self._stop(_ratios(rounds), len(rounds), time.monotonic() - began)
            if stop:
                timing.stopped_because = stop
                break
        self._conclude(timing, rounds)
        timing.plain = self._plain(p)

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
        clear = abs(found.log_ratio) - math.hypot(half, self.floor) > 0
        return "the budget was spent and the sign is clear" if spent_s > self.t.budget_s and clear else ""

    def _gated(self, side: str, p: _Prepared, layout: int) -> _Turn:
        """One turn, and how long this process's clock saw it last."""
        body = _turn_order(p, layout, "gated")
        began = time.perf_counter()
        if side == "candidate":
            turn = self.trial.ask(body, GatedTurn)
        else:
            turn = GatedTurn.model_validate(self.judge.ask(**body).body)
        wall_us = (time.perf_counter() - began) * 1e6
        if len(turn.full_us) != _TIMED or len(turn.gate_us) != _TIMED:
            raise _forged("a turn answered with another number of readings than were asked", p.timing.case.id)
        calls = p.layouts[layout].calls
        full, gate = statistics.fmean(turn.full_us) / calls, statistics.fmean(turn.gate_us) / calls
        # The primed batches ran as long as the timed ones, and each began with the prefix.
        ran = calls + p.layouts[layout].prefix
        return _Turn(full, gate, wall_us / ((_PRIME + _TIMED) * ran), ran)

    def _conclude(self, timing: CaseTiming, rounds: list[_Round]) -> None:
        usable = _ratios(rounds)
        if len(usable) < max(3.0, _USABLE * len(rounds)):
            timing.reason = "the calls are shorter than what the clock resolves"
            return
        estimate = stopping.estimate(usable, trim=self.t.trim)
        gate = _baseline_gate(rounds)
        candidate = statistics.median(t.op(gate) for r in rounds for t in r.candidate)
        baseline = statistics.median(t.op(gate) for r in rounds for t in r.baseline)
        over = {
            "candidate": [t.unexplained(gate) for r in rounds for t in r.candidate],
            "baseline": [t.unexplained(gate) for r in rounds for t in r.baseline],
        }
        gap = statistics.median(over["candidate"]) - statistics.median(over["baseline"])
        spread = _spread(over["baseline"]) + _spread(over["candidate"])
        calls = statistics.median(t.calls for r in rounds for t in r.candidate)
        slack = _SLACK_US / ((_PRIME + _TIMED) * calls)
        if gap > max(self.t.witness * candidate, 4 * spread, slack):
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

    def _plain(self, p: _Prepared) -> Estimate:
        """Plain replay with every argument cold: what other harnesses report."""
        rounds = []
        case = p.timing.case.id
        count = min(self.t.plain_layouts, len(p.layouts))
        theirs, ours = self._draws(count), self._draws(count)
        for n in range(count):
            values: dict[str, list[float]] = {"candidate": [], "baseline": []}
            pair = {"candidate": theirs[n], "baseline": ours[n]}
            for side in abba(self.random):
                body = _turn_order(p, pair[side], "plain")
                if side == "candidate":
                    turn = self.trial.ask(body, PlainTurn)
                else:
                    turn = PlainTurn.model_validate(self.judge.ask(**body).body)
                if len(turn.plain_us) != _TIMED:
                    raise _forged("a turn answered with another number of readings than were asked", case)
                values[side].append(statistics.fmean(turn.plain_us) / p.layouts[pair[side]].calls)
            rounds.append((n, math.log(statistics.fmean(values["baseline"]) / statistics.fmean(values["candidate"]))))
        return stopping.estimate(rounds, trim=0.0)

    def _audit(self, p: _Prepared) -> None:
        """New secret inputs, one replay; then the gates' samples, and all that one call returned, are judged.

        Where the gates sample is known in the candidate's process; which call is looked at as a whole is drawn here,
        after the replay.
        """
        case = p.timing.case.id
        layout = self.random.randrange(len(p.layouts))
        self.judge.ask("refill", case=case)
        body = _turn_order(p, layout, "full") | {"prime": 0, "timed": 1, "fill": True}
        self.trial.ask(body, FullTurn)
        order = p.layouts[layout].order
        call = self.random.randrange(len(order))
        whole = {"do": "outputs", "case": case, "layout": layout, "call": call, "slot": order[call]}
        self.trial.ask(whole | {"results": p.results}, Nothing)
        told = self.judge.ask(
            "audit", case=case, layout=layout, slots=order, sample_seed=p.seeds[layout][1], whole=[order[call]]
        ).body
        if told["wrong"]:
            what = (
                f"replaying the captured calls on new inputs gave wrong values in {told['wrong']} of "
                f"{told['checked']} calls: what was captured does not compute the whole result anew each time"
            )
            evidence = Evidence(
                kind="graph_stale",
                what=what,
                instead="launch all work of a call on the current stream, from the call's own arguments, in every call",
            )
            raise CandidateFault(Outcome.TAMPERED, what, [evidence], case)

    # -- eager -----------------------------------------------------------------------------------------------------

    def _time_cpu(self, prepared: list[_Prepared]) -> None:
        """Every case for a while, a few times: what holds a core for a second spoils only a part of each."""
        timers = [
            EagerTimer(self.trial, self.judge, p.timing.case.id, p.calls, _CPU_TURN_S, on_gpu=False) for p in prepared
        ]
        for visit in range(_CPU_VISITS):
            for number, (p, timer) in enumerate(zip(prepared, timers, strict=True)):
                self._check()
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

    def _time_eager(self, p: _Prepared) -> None:
        """What can't be captured runs eagerly by the wall clock; the baseline in a graph, as an engine would run it."""
        timing = p.timing
        timing.mode = "eager"
        timer = EagerTimer(self.trial, self.judge, timing.case.id, p.calls, _EAGER_TURN_S, on_gpu=True)
        graphs: list[float] = []
        began, done = time.monotonic(), 0
        while done < _EAGER_ROUNDS and (done < _PATIENCE or time.monotonic() - began < _EAGER_BUDGET_S):
            timer.round()
            done += 1
            if p.graph_baseline:
                # Warm, as the inputs of eager calls have just been written.
                body = _turn_order(p, done % min(self.t.plain_layouts, len(p.seeds)), "warm")
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


@contextlib.contextmanager
def exclusive(lease: Lease, trial: Trial) -> Iterator[None]:
    """Hold the device alone for a while."""
    lease.upgrade("exclusive", cancel=trial.cancel)
    try:
        yield
    finally:
        lease.downgrade()


def _turn_order(p: _Prepared, layout: int, kind: str) -> dict[str, Any]:
    """What either side is asked to replay."""
    case = p.timing.case.id
    return {"do": "turn", "case": case, "layout": layout, "kind": kind, "prime": _PRIME, "timed": _TIMED}


def _theirs(r: _Round) -> list[_Turn]:
    return r.candidate


def _ours(r: _Round) -> list[_Turn]:
    return r.baseline


def _baseline_gate(rounds: list[_Round]) -> float:
    return statistics.median(t.gate for r in rounds for t in r.baseline)


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


def _forged(what: str, case: str) -> CandidateFault:
    evidence = Evidence(
        kind="protocol",
        what=what,
        instead="leave the harness's own objects in the process alone; only define the class",
    )
    return CandidateFault(Outcome.TAMPERED, what, [evidence], case)


def _groups(cases: list[CaseSpec]) -> list[list[CaseSpec]]:
    """Cases whose captures fit in memory together, by a rough size: elements, times 8 bytes, 4 slots and 12 layouts."""
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


def _spread(values: list[float]) -> float:
    """Standard error of a median, from the middle half."""
    if len(values) < 4:
        return math.inf
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 1.35 * 1.25 / math.sqrt(len(ordered))
