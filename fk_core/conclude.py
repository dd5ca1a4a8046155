"""The report of a hearing: decide, and say what to do next."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fk_core import __version__, verdict
from fk_core.domain import share
from fk_core.hearing import Hearing
from fk_core.plain import clean_text
from fk_core.records.report import CaseReport, Deploy, Machine, Outcome, Seconds, ValidateReport, blame_of
from fk_core.settings import Settings, Timing

_COMPARED = (
    *(Outcome.WRONG_SHAPE, Outcome.WRONG_DTYPE, Outcome.WRONG_VALUES),
    *(Outcome.NON_FINITE, Outcome.MUTATED),
)


def conclude(h: Hearing, settings: Settings) -> ValidateReport:
    """Decide, and write the report."""
    passed = h.outcome is Outcome.PASSED
    gpu = h.device.kind == "cuda"
    decision = None
    cases = list(h.reports.values())
    if passed:
        by_id = {m.case.id: m for m in h.measured}
        cases = [
            verdict.case_report(c, by_id[c.id], settings.timing, h.floor_in_use, h.crowd) if c.id in by_id else c
            for c in cases
        ]
        decision = verdict.decide(
            cases,
            h.measured,
            settings.timing,
            h.floor_in_use,
            correct=True,
            gpu=gpu,
            baseline=h.baseline,
            trusted=h.sandbox in ("namespaces", "landlock+seccomp"),
            outside=len(h.outside),
            crowd=h.crowd,
        )
        cases += [
            CaseReport(
                id=c.id,
                outcome=Outcome.PASSED,
                reason="outside the domain that the candidate declares: the baseline runs here, so it counts 1.00",
                routed_to_baseline=True,
                verdict="same",
                speedup=1.0,
                calls=c.calls,
            )
            for c in h.outside
        ]
    warnings = list(dict.fromkeys(h.warnings + [n for m in h.measured for n in m.notes] + _sign_warnings(h)))
    return ValidateReport(
        op=h.spec.name,
        level=h.spec.level,
        outcome=h.outcome,
        blame=blame_of(h.outcome),
        correct=passed,
        winner=bool(decision and decision.winner),
        winner_reason=decision.winner_reason if decision else _no_winner(h),
        seed_gate=decision.seed_gate if decision else (False if blame_of(h.outcome) == "candidate" else None),
        summary=verdict.summary(h.spec.name, h.outcome, h.reason, decision, len(h.cases), len(h.outside)),
        speed=decision.speed if decision else verdict.Speed(reason=f"not timed: {h.outcome.value}"),
        cases=cases,
        deploy=_deploy(h),
        evidence=h.evidence,
        warnings=warnings[:30],
        next_steps=_next_steps(h, cases, decision, settings.timing),
        seconds=Seconds(**{k: round(v, 4) for k, v in h.seconds.items()}, detail=h.detail),
        machine=h.machine,
        case_set=f"{h.request.cases}: {len(h.cases) + len(h.outside)} cases for {h.device.kind}",
        source_sha256=hashlib.sha256(h.request.source.encode("utf-8", "replace")).hexdigest(),
        log_tail=_log(h) if not passed else "",
    )


def _log(h: Hearing) -> str:
    """What there is to read of a failure: the exception and its traceback, then the end of what was printed."""
    _, _, exception = h.reason.partition("\n")
    return "\n".join(part for part in (clean_text(exception.strip()), h.log_tail) if part)


def _no_winner(h: Hearing) -> str:
    """Why a candidate that did not pass is no winner: only values that were compared can be found not correct."""
    if h.outcome in _COMPARED:
        return "not correct"
    if all(report.outcome is Outcome.PASSED for report in h.reports.values()):
        return f"not timed to the end: {h.outcome.value}"
    return f"correctness was not judged to the end: {h.outcome.value}"


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
        domain_share=share([*h.cases, *h.outside], h.domain),
        reasons=[*reasons, "compile_safe and allocates were not tried"],
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


def _next_steps(h: Hearing, cases: list[CaseReport], decision: verdict.Decision | None, timing: Timing) -> list[str]:
    if h.outcome is not Outcome.PASSED:
        steps = [e.instead for e in h.evidence if e.instead]
        if h.outcome is Outcome.WRONG_VALUES:
            steps.append(
                "Recompute the first wrong element by hand from the contract that "
                f"`fk stub {h.spec.name}` shows, then submit again"
            )
        elif h.outcome in (Outcome.BUILD_FAILED, Outcome.CONTRACT_BROKEN):
            steps.append(f"Compare the file with `fk stub {h.spec.name}`, mend what the reason names, submit again")
        elif h.outcome in (Outcome.NO_GPU_IN_TIME, Outcome.CONTENDED):
            steps.append("Submit the same source again later; `fk gpus` shows who holds the device")
        elif blame_of(h.outcome) in ("harness", "machine"):
            steps.append("This is not the candidate's fault: submit it again, and run `fk doctor` if it repeats")
        elif h.outcome is Outcome.CRASHED:
            steps.append("Make the call that the reason names by itself, mend what ends it, then submit again")
        elif not steps and blame_of(h.outcome) == "candidate":
            steps.append("Mend what the reason names, then submit again")
        return steps[:5]
    if decision is None or decision.winner:
        return ["Keep it"] if decision else []
    steps = []
    unclear = decision.speed.verdict == "inconclusive"
    if unclear and h.crowd:
        steps.append(
            "Submit the same source again once the machine is quiet, it is judged anew then: other work made these "
            "times unclear"
        )
    elif unclear and h.floor > timing.usual_floor(h.device.kind):
        first = "End other work on the GPU, or lock its clocks" if h.device.kind == "cuda" else "End other work"
        steps.append(f"{first}, then run `fk doctor`: the machine's own error was measured as {100 * h.floor:.3g}%")
    slow = [c for c in cases if c.verdict == "slower"]
    if slow:
        worst = min(slow, key=lambda c: c.speedup or 1.0)
        steps.append(f"Look at {worst.id} first: {verdict.times(worst.speedup or 0.0)}")
    return steps


def machine(h: Hearing, versions: Mapping[str, Any]) -> Machine:
    """What it was judged on; ``versions`` are what the zygote imported."""
    gpu = h.device if h.device.kind == "cuda" else None
    return Machine(
        device=h.device.uuid,
        gpu=gpu.name if gpu else "",
        driver=gpu.driver if gpu else "",
        cpu="" if gpu else h.device.name,
        python=str(versions.get("python", "")),
        torch=str(versions.get("torch", "")),
        triton=str(versions.get("triton", "")),
        fk=__version__,
        sandbox=h.sandbox,
        clocks=h.clocks or ("as found, not locked" if gpu else ""),
        floor=h.floor_in_use,
        crowd=h.crowd,
    )
