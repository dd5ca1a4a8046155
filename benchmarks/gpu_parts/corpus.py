"""The corpus on this device: what needs a GPU first, then all honest files, then the other cheats while there is time.

Files that an earlier run has settled are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterator

from benchmarks.gpu_parts import look
from benchmarks.gpu_parts.context import Context, begin
from fk_core import settings as fk_settings
from fk_core.errors import FkError
from fk_core.harness import Harness
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from tests.adversaries.corpus_index import Entry, entries
from tests.adversaries.submit_all import ONE_CASE
from tests.adversaries.test_corpus import PATIENT, QUICK, _none_left

TOTAL_S = 240.0
# What keeps the GPU busy for 12 s makes its own calls wait, and is meant to be late.
BROKE_DOWN = (Outcome.CRASHED, Outcome.BUILD_FAILED, Outcome.CONTRACT_BROKEN, Outcome.TIMED_OUT)
FEW = ("h_ignore_weight.py", "h_capture_skip_last.py", "ok_softmax_plain.py", "h_none_output.py")
"""What a dry run submits."""


def main(argv: list[str] | None = None) -> None:
    ctx = begin("b", argv)
    done = {name for name, row in ctx.done().items() if row["ok"] is not False}
    todo = [entry for entry in wanted(ctx.dry) if entry.path.name not in done]
    with contextlib.ExitStack() as stack:
        desks = Desks(stack)
        for number, entry in enumerate(todo):
            if ctx.left() < expected_s(entry):
                ctx.add("complete", None, left=[e.path.name for e in todo[number:]])
                return
            submit(ctx, desks, entry)
    ctx.add("complete", True)


def wanted(dry: bool) -> list[Entry]:
    """Most telling first; within a kind, those that run a compiler or never end come last."""
    found = entries()
    if dry:
        return [entry for entry in found if entry.path.name in FEW]
    return sorted(found, key=lambda e: (not e.needs_gpu, e.expect != "accept", e.slow))


def expected_s(entry: Entry) -> float:
    return 60.0 if entry.compiles else 30.0 if entry.slow else 8.0


class Desks:
    """Two harnesses that stay warm: a patient one, and one that soon ends what hangs."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._made: dict[bool, Harness] = {}

    def harness(self, entry: Entry) -> Harness:
        patient = entry.expect == "accept" or entry.compiles or entry.needs_gpu
        if patient not in self._made:
            loaded = fk_settings.load()
            limits = dataclasses.replace(loaded.limits, total_s=TOTAL_S, **(PATIENT if patient else QUICK))
            made = Harness(dataclasses.replace(loaded, limits=limits))
            self._made[patient] = self._stack.enter_context(made)
            made.warm()
        return self._made[patient]

    def __len__(self) -> int:
        return len(self._made)


def submit(ctx: Context, desks: Desks, entry: Entry) -> None:
    harness = desks.harness(entry)
    device = harness.device()
    before, began = look.look(device), time.monotonic()
    name = f"candidate_{hashlib.sha256(entry.text.encode()).hexdigest()[:6]}.py"
    try:
        for cases in attempts(entry, ctx.dry):
            report = harness.validate(
                ValidateRequest(op=entry.task, source=entry.neutral_source, path=name, cases=cases, fresh=True)
            )
            ctx.keep(entry.path.name, report, expect=entry.expect)
            why = problem(entry, report)
            if not why:
                break
    except FkError as error:
        ctx.add(entry.path.name, False, outcome="none", blame=None, evidence=[], why=str(error)[:500])
        return
    seconds = time.monotonic() - began
    # A judge keeps its context, so as many processes are there as harnesses.
    settled, after = look.settled(device, before, len(desks))
    strays = _none_left(harness.settings)
    ok: bool | None = not why and settled and not strays
    meant = entry.kind == "crash" or (entry.kind == "contention" and report.outcome is Outcome.TIMED_OUT)
    if ok and entry.needs_gpu and not meant and report.outcome in BROKE_DOWN:
        ok, why = None, ["rejected because it broke down, which may be the file's own fault: look at it"]
    if ctx.dry and entry.needs_gpu:
        ok, why = None, ["needs a GPU"]  # what it does on a CPU says nothing
    ctx.add(
        entry.path.name,
        ok,
        kind=entry.kind,
        needs_gpu=entry.needs_gpu,
        expect=entry.expect,
        outcome=report.outcome.value,
        blame=report.blame,
        evidence=[e.kind for e in report.evidence],
        winner=report.winner,
        mode=report.speed.mode,
        cases=cases,
        seconds=round(seconds, 2),
        memory=[before.as_dict(), after.as_dict()],
        strays=strays,
        why=" ".join([*why, *([] if settled else ["memory or processes did not come back"])]),
        summary=report.summary[:300],
    )


def attempts(entry: Entry, dry: bool) -> Iterator[str]:
    """Few cases, and all of them where the few did not show what is wrong with a cheat."""
    yield ONE_CASE[entry.task] if dry and entry.expect == "accept" else "quick"
    if not dry and entry.expect != "accept":
        yield "default"


def problem(entry: Entry, report: ValidateReport) -> list[str]:
    """What is not as the corpus demands."""
    found = []
    passed = report.outcome is Outcome.PASSED
    if entry.expect == "accept":
        found += [] if passed and report.correct else [f"honest, but {report.outcome.value}"]
        found += [f"evidence: {e.kind} {e.what}"[:300] for e in report.evidence]
    elif entry.expect == "reject":
        found += ["accepted"] if passed or report.correct or report.winner else []
        found += [] if passed or report.blame == "candidate" else [f"blame: {report.blame}"]
    elif not passed and report.blame != "candidate":
        found.append(f"blame: {report.blame}")
    return found


if __name__ == "__main__":
    main()
