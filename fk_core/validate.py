"""One validation from request to report; read it as its own table of contents."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fk_core import prebuild, verdict
from fk_core.desk import Desk, JudgeSession
from fk_core.errors import Cancelled, FkError, LeaseTimeout, MachineError
from fk_core.leases.base import Lease, LeaseBackend
from fk_core.measure import CaseTiming, Stopwatch
from fk_core.records.claims import Findings
from fk_core.records.device import Device, Holder
from fk_core.records.report import (
    CaseReport,
    Deploy,
    Evidence,
    Machine,
    Outcome,
    Seconds,
    ValidateReport,
    ValidateRequest,
    blame_of,
)
from fk_core.records.task import CaseSpec, TaskSpec
from fk_core.sandbox import sweep
from fk_core.sandbox.launch import Child
from fk_core.settings import Settings
from fk_core.source_check import Problem
from fk_core.trial import CandidateFault, Progress, Trial

Spawn = Callable[[], tuple[Child, Path]]


@dataclass
class Hearing:
    """All that a validation collects on its way to the report."""

    request: ValidateRequest
    spec: TaskSpec
    cases: list[CaseSpec]
    device: Device
    reports: dict[str, CaseReport] = field(default_factory=dict)
    outcome: Outcome = Outcome.PASSED
    reason: str = ""
    evidence: list[Evidence] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    measured: list[CaseTiming] = field(default_factory=list)
    flags: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    detail: dict[str, float] = field(default_factory=dict)
    baseline: str = ""
    log_tail: str = ""
    sandbox: str = ""
    floor: float = 0.0
    machine: Machine | None = None

    def __post_init__(self) -> None:
        self.reports = {
            c.id: CaseReport(id=c.id, outcome=Outcome.NOT_RUN, reason="not reached", calls=c.calls) for c in self.cases
        }

    @contextlib.contextmanager
    def clock(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


def validate(
    hearing: Hearing,
    desk: Desk,
    leases: LeaseBackend,
    settings: Settings,
    progress: Progress,
    cancel: threading.Event | None,
    *,
    spawn: Spawn | None = None,
    provider: str = "",
    plant: bool = False,
    seed: int,
) -> ValidateReport:
    """Run the candidate on every case and decide. What goes wrong ends up in the report, not as an exception,
    except ``Cancelled`` and faults of the harness before a device was held.

    ``spawn`` starts another process than the candidate (a twin); ``provider`` names another baseline than the first;
    ``plant`` slows the baseline down by about 3%.
    """
    began = time.monotonic()
    try:
        with hearing.clock("queue"):
            progress("waiting for the device", None)
            lease = leases.acquire(
                hearing.device,
                "shared",
                purpose=f"validate {hearing.spec.name}",
                cancel=cancel,
                on_wait=lambda place, holders: progress(_waiting(place, holders), None),
            )
        with lease:
            try:
                _on_the_device(hearing, desk, lease, settings, progress, cancel, spawn, provider, plant, seed)
            finally:
                hearing.seconds["gpu_exclusive"] = lease.exclusive_s
                hearing.seconds["queue"] = lease.waited_s
    except Cancelled:
        hearing.outcome, hearing.reason = Outcome.CANCELLED, "cancelled by the caller"
    except LeaseTimeout as error:
        hearing.outcome, hearing.reason = Outcome.NO_GPU_IN_TIME, str(error)
    except MachineError as error:
        hearing.outcome, hearing.reason = Outcome.GPU_FAULT, str(error)
    except FkError as error:
        hearing.outcome, hearing.reason = Outcome.HARNESS_FAULT, str(error)
    hearing.seconds["total"] = time.monotonic() - began
    return conclude(hearing, settings)


def _on_the_device(
    h: Hearing,
    desk: Desk,
    lease: Lease,
    settings: Settings,
    progress: Progress,
    cancel: threading.Event | None,
    spawn: Spawn | None,
    provider: str,
    plant: bool,
    seed: int,
) -> None:
    with h.clock("build"):
        progress("starting", None)
        desk.warm()
        child, scratch = (spawn or (lambda: desk.candidate(h.request.source, allow=list(h.request.allow))))()
    h.sandbox = child.level or ""
    watcher = _Watcher(child, cancel)
    try:
        with desk.session(cancel) as judge:
            _trial(
                h, desk, child, scratch, judge, lease, settings, progress, cancel, provider, plant, seed, spawn is None
            )
    except CandidateFault as fault:
        _fail(h, fault)
    finally:
        watcher.stop()
        h.log_tail = _quoted(child.log_tail())
        child.kill()
        sweep.remove(scratch)
        h.machine = _machine(desk, h)


def _trial(
    h: Hearing,
    desk: Desk,
    child: Child,
    scratch: Path,
    judge: JudgeSession,
    lease: Lease,
    settings: Settings,
    progress: Progress,
    cancel: threading.Event | None,
    provider: str,
    plant: bool,
    seed: int,
    spawned: bool,
) -> None:
    trial = Trial(child, scratch, judge, settings, cancel)
    try:
        with h.clock("build"):
            progress("building", None)
            opening = judge.post(
                "open",
                task=h.spec.model_dump(mode="json"),
                cases=[c.model_dump(mode="json") for c in h.cases],
                seed=seed,
                provider=provider,
                plant=plant,
                brief=not spawned,
            )
            loading = trial.begin_load(list(dict.fromkeys(c.entry for c in h.cases)))
            opened = judge.collect_frame(opening, "open")
            h.baseline = f"{opened.body['baseline']['name']}: {opened.body['baseline']['what']}"
            stopwatch = Stopwatch(trial, judge, settings.timing, h.floor, h.device.kind == "cpu", progress)
            keys = {p["case_id"]: k for p, k in zip(opened.body["probes"], opened.body["keys"], strict=True)}
            # Kernels are compiled and the baseline is captured while the candidate starts: none waits for another.
            ahead = None
            if spawned and prebuild.worthwhile(h.request.source, desk):
                ahead = prebuild.Prebuild(desk, h.request.source, scratch, opened.body["builds"])
            try:
                stopwatch.plan(h.cases, keys)
                trial.end_load(loading)
            finally:
                if ahead is not None:
                    ahead.finish()
            trial.open(opened)
        with h.clock("correctness"):
            trial.correctness(h.reports, progress)
            h.flags = judge.ask("flags").body["flags"]
        for case in h.cases:
            h.reports[case.id] = h.reports[case.id].model_copy(update={"outcome": Outcome.PASSED, "reason": ""})
        with h.clock("timing"):
            h.measured = stopwatch.all_cases(lease)
        trial.weigh(trial.ask({"do": "checkpoint", "where": "final"}, Findings))
    finally:
        h.warnings += trial.warnings
        h.detail = {k: round(v, 4) for k, v in (trial.detail + judge.detail).items()}


def _fail(h: Hearing, fault: CandidateFault) -> None:
    h.outcome, h.reason, h.evidence = fault.outcome, fault.reason, fault.evidence
    failed = [fault.case] if fault.case in h.reports else list(h.reports)[:1] if fault.mismatch else []
    for case_id in failed:
        judged = fault.judged.get("judgement") or {}
        h.reports[case_id] = h.reports[case_id].model_copy(
            update={
                "outcome": fault.outcome,
                "reason": fault.reason.splitlines()[0][:600],
                "first_mismatch": fault.mismatch,
                "max_abs_error": judged.get("max_abs_error"),
                "max_error_ratio": judged.get("max_error_ratio"),
            }
        )
    for case_id, report in h.reports.items():
        if report.outcome is Outcome.PASSED and fault.outcome is Outcome.TAMPERED:
            h.reports[case_id] = report.model_copy(
                update={"outcome": Outcome.NOT_RUN, "reason": "not believed: see the evidence"}
            )
        elif report.outcome is Outcome.NOT_RUN:
            h.reports[case_id] = report.model_copy(update={"reason": "not reached: the candidate failed before"})


def rejected_text(hearing: Hearing, problems: list[Problem], settings: Settings) -> ValidateReport:
    """The report on a source that can't even be tried."""
    hearing.outcome = problems[0].outcome
    hearing.reason = "\n".join(p.message for p in problems)
    hearing.seconds["total"] = 0.0
    return conclude(hearing, settings)


def conclude(h: Hearing, settings: Settings) -> ValidateReport:
    """Decide, and write the report."""
    passed = h.outcome is Outcome.PASSED
    gpu = h.device.kind == "cuda"
    decision = None
    cases = list(h.reports.values())
    if passed:
        by_id = {m.case.id: m for m in h.measured}
        cases = [verdict.case_report(c, by_id[c.id], settings.timing, h.floor) if c.id in by_id else c for c in cases]
        decision = verdict.decide(
            cases,
            h.measured,
            settings.timing,
            h.floor,
            correct=True,
            gpu=gpu,
            baseline=h.baseline,
            trusted=h.sandbox in ("namespaces", "landlock+seccomp"),
        )
    warnings = list(dict.fromkeys(h.warnings + [n for m in h.measured for n in m.notes] + _sign_warnings(h)))
    return ValidateReport(
        op=h.spec.name,
        level=h.spec.level,
        outcome=h.outcome,
        blame=blame_of(h.outcome),
        correct=passed,
        winner=bool(decision and decision.winner),
        winner_reason=decision.winner_reason if decision else "not correct",
        seed_gate=decision.seed_gate if decision else (False if blame_of(h.outcome) == "candidate" else None),
        summary=verdict.summary(h.spec.name, h.outcome, h.reason, decision, len(h.cases)),
        speed=decision.speed if decision else verdict.Speed(reason=f"not timed: {h.outcome.value}"),
        cases=cases,
        deploy=_deploy(h),
        evidence=h.evidence,
        warnings=warnings[:30],
        next_steps=_next_steps(h, cases, decision),
        seconds=Seconds(**{k: round(v, 4) for k, v in h.seconds.items()}, detail=h.detail),
        machine=h.machine,
        case_set=f"{h.request.cases}: {len(h.cases)} cases for {h.device.kind}",
        source_sha256=hashlib.sha256(h.request.source.encode("utf-8", "replace")).hexdigest(),
        log_tail=h.log_tail if not passed else "",
    )


def _deploy(h: Hearing) -> Deploy:
    reasons = []
    known = [m for m in h.measured if m.capturable is not None]
    capturable = all(m.capturable for m in known) if known else None
    if capturable is False:
        reasons += sorted(
            {f"not capturable in a CUDA graph: {m.capture_reason}"[:300] for m in known if not m.capturable}
        )
    syncs = any("capturing" in m.capture_reason for m in known) if capturable is False else (False if known else None)
    if h.flags.get("repeatable") is False:
        reasons.append("the same values gave other bits in another call")
    if h.flags.get("batch_invariant") is False:
        reasons.append("a row alone gives other bits than the same row in a batch")
    return Deploy(
        graph_capturable=capturable,
        syncs=syncs,
        pdl=any(m.programmatic for m in known) if known else None,
        mutates_as_declared=h.outcome is not Outcome.MUTATED
        if h.outcome in (Outcome.PASSED, Outcome.MUTATED)
        else None,
        repeatable=h.flags.get("repeatable"),
        batch_invariant=h.flags.get("batch_invariant"),
        domain_share=1.0 if h.outcome is Outcome.PASSED else None,
        reasons=reasons,
    )


def _sign_warnings(h: Hearing) -> list[str]:
    found = []
    for m in h.measured:
        if m.estimate is None or m.plain is None:
            continue
        a, b = m.estimate.log_ratio, m.plain.log_ratio
        if a * b < 0 and min(abs(a), abs(b)) > 0.01:
            found.append(
                f"{m.case.id}: {m.estimate.ratio:.3f}x with activations in cache, {m.plain.ratio:.3f}x all cold"
            )
    return found


def _next_steps(h: Hearing, cases: list[CaseReport], decision: verdict.Decision | None) -> list[str]:
    if h.outcome is not Outcome.PASSED:
        steps = [e.instead for e in h.evidence if e.instead]
        if h.outcome is Outcome.WRONG_VALUES:
            steps.append(
                "Recompute the first wrong element by hand from the contract in create_stub, then submit again"
            )
        elif h.outcome in (Outcome.BUILD_FAILED, Outcome.CONTRACT_BROKEN):
            steps.append(
                f"Compare the file with create_stub(op={h.spec.name!r}), mend what the reason names, submit again"
            )
        elif h.outcome in (Outcome.NO_GPU_IN_TIME, Outcome.CONTENDED):
            steps.append("Submit the same source again later; gpu_status shows who holds the device")
        elif blame_of(h.outcome) in ("harness", "machine"):
            steps.append("This is not the candidate's fault: submit it again, and run `fk doctor` if it repeats")
        return steps[:5]
    if decision is None or decision.winner:
        return ["Keep it"] if decision else []
    steps = []
    if decision.winner_reason:
        steps.append(f"Not a winner: {decision.winner_reason}")
    slow = [c for c in cases if c.verdict == "slower"]
    if slow:
        worst = min(slow, key=lambda c: c.speedup or 1.0)
        steps.append(f"Look at {worst.id} first: {worst.speedup:.3f}x")
    return steps


def _machine(desk: Desk, h: Hearing) -> Machine:
    versions = desk.versions
    gpu = h.device if h.device.kind == "cuda" else None
    return Machine(
        device=h.device.uuid,
        gpu=gpu.name if gpu else "",
        driver=gpu.driver if gpu else "",
        cpu="" if gpu else h.device.name,
        python=str(versions.get("python", "")),
        torch=str(versions.get("torch", "")),
        triton=str(versions.get("triton", "")),
        fk=_version(),
        sandbox=h.sandbox,
        clocks="as found, not locked" if gpu else "",
        floor=h.floor,
    )


def _version() -> str:
    from fk_core import __version__

    return __version__


def _waiting(place: int, holders: list[Holder]) -> str:
    held = ", ".join(f"{x.purpose or 'pid'} ({x.pid})" for x in holders[:3])
    return f"waiting for the device: place {place}" + (f", held by {held}" if held else "")


def _quoted(text: str) -> str:
    """The candidate's own output: never an instruction, only its end, and nothing that moves a terminal's cursor."""
    kept = "".join(ch if ch in "\n\t" or ch.isprintable() else "?" for ch in text[-1500:])
    return kept


def _close(fd: int) -> None:
    import os

    os.close(fd)


class _Watcher:
    """Ends the candidate at once when the caller cancels."""

    def __init__(self, child: Child, cancel: threading.Event | None) -> None:
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if cancel is not None:
            self._thread = threading.Thread(target=self._watch, args=(child, cancel), daemon=True)
            self._thread.start()

    def _watch(self, child: Child, cancel: threading.Event) -> None:
        while not self._done.is_set():
            if cancel.wait(0.1):
                child.kill()
                return

    def stop(self) -> None:
        self._done.set()
