"""The timing against itself: baselines in the candidate's place, and with 3% planted on either side.

    python -m benchmarks.aa [--runs 10] [--planted 20] [--ops rms_norm] [--cases default] [--providers all]
                            [--rows FILE] [--seconds 500] [--show-only]

``--rows`` keeps one JSON line a run. What is in the file already counts, so that runs can be collected in several
calls; ``--more 3`` adds so many to what there is instead of filling up to ``--runs``. Prints, per operator and
provider and together, how many ratios are within 0.5% of 1, every case called faster or slower, the winners, and how
often the planted change was seen.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks import aa_figures
from benchmarks.gpu_parts import record
from fk_core.calibrate import run_twin
from fk_core.catalog import Catalog
from fk_core.child.baselines.base import production, provider
from fk_core.harness import Harness
from fk_core.records.device import Device
from fk_core.records.report import ValidateReport

Kept = Callable[[str, ValidateReport], None]

AHEAD = 0.5
_FIRST_S, _FIRST_COMPILED_S = 30.0, 60.0
"""What a first run of an operator and provider may take: torch.compile meets every shape."""


@dataclass(frozen=True)
class Step:
    kind: str
    op: str
    provider: str = ""
    side: str = ""

    def same(self, row: record.Row) -> bool:
        return all(row.get(key, "") == value for key, value in self.__dict__.items())


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(options.rows or f"{temporary}/aa.jsonl")
        if not options.show_only:
            with contextlib.ExitStack() as stack:
                collect(Desks(stack), options, path, time.monotonic() + options.seconds)
        rows = record.read(path)
    for line in aa_figures.lines(rows, cases=True):
        print(line)
    return 1 if any(row["outcome"] != "PASSED" for row in rows) else 0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each operator and provider against itself")
    parser.add_argument("--planted", type=int, default=20, help="runs with 3%% planted, on either side; 0 for none")
    parser.add_argument("--more", type=int, default=0, help="add so many runs to what --rows has already")
    parser.add_argument("--ops", default="rms_norm,silu_and_mul,softmax", help="operators, with commas between")
    parser.add_argument("--cases", default="default", help="default (all), quick, or globs over case ids")
    parser.add_argument("--planted-cases", default="quick", help="the same for the runs with a plant")
    parser.add_argument("--planted-provider", default="", help="default: the first; torch_eager starts soonest")
    parser.add_argument("--providers", default="first", help="first, all that are installed, or names of others")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, a GPU index or UUID")
    parser.add_argument("--rows", default="", help="file that keeps one JSON line a run")
    parser.add_argument("--seconds", type=float, default=1e9, help="in all; no run begins that would take longer")
    parser.add_argument("--show-only", action="store_true", help="run nothing; print what --rows has")
    options = parser.parse_args(argv)
    unknown = [] if options.show_only else sorted(set(options.providers.split(",")) - {"first", "all"} - _installed())
    if unknown:
        there = ", ".join(sorted(_installed()))
        parser.error(f"--providers: no operator has {', '.join(map(repr, unknown))} here; installed: {there}")
    return options


def _installed() -> set[str]:
    """Of all operators' providers."""
    catalog = Catalog()
    return {name for op in catalog.names() for name in catalog.get(op).baselines if provider(name).installed()}


class Desks:
    """A harness, and so a judge, for each production library and one for torch: importing such a library may change
    what torch.compile makes of the same operator, and then its two sides would differ."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._made: dict[str, Harness] = {}

    def harness(self, name: str = "") -> Harness:
        library = name if name and provider(name).libraries else ""
        if library not in self._made:
            self._made[library] = self._stack.enter_context(Harness())
        return self._made[library]


def collect(
    desks: Desks, options: argparse.Namespace, path: Path, until: float, kept: Kept = lambda step, report: None
) -> bool:
    """Run what is missing, round by round, until it is there or the time is over; says whether all is there."""
    harness = desks.harness()
    device = harness.device(options.device)
    floor = harness.floors.of(device)
    print(f"device {device.name} {device.driver}, floor in use {100 * floor:.2f}%", flush=True)
    wanted = plan(harness, device, options)
    there = record.read(path)
    done = {step: sum(map(step.same, there)) for step in wanted}
    if options.more:
        wanted = {step: done[step] + options.more for step in wanted}
    late: set[Step] = set()
    while step := next_step({s: n for s, n in wanted.items() if s not in late}, done):
        if time.monotonic() + _needed(step, there) > until:
            late.add(step)
            continue
        row, report = run(desks, device, step, done[step], options)
        record.append(path, row)
        there.append(row)
        kept(f"{step.kind} {step.op} {step.provider or step.side} {done[step]}", report)
        done[step] += 1
        ratios = [c["speedup"] for c in row["cases"] if c["speedup"] is not None]
        said = f"{min(ratios, default=0):.4f} to {max(ratios, default=0):.4f}"
        name = " ".join(word for word in step.__dict__.values() if word)
        print(f"{row['seconds']:6.2f} s {name} {row['run']} {row['outcome']} {row['word']} {said}", flush=True)
    return not late


def plan(harness: Harness, device: Device, options: argparse.Namespace) -> dict[Step, int]:
    """How many runs of what: the first provider of each operator first, then the plants, then other providers."""
    ops = options.ops.split(",")
    installed = {op: _providers(harness, device, op, options) for op in ops}
    wanted = {Step("aa", op, names[0]): options.runs for op, names in installed.items()}
    for number, op in enumerate(ops):
        # Dealt out in turn, so that few plants touch all operators, too.
        share = len(range(number, options.planted, len(ops)))
        wanted |= {Step("planted", op, side=side): share for side in aa_figures.PLANTS}
    others = {name for names in installed.values() for name in names[1:]}
    chosen = set(options.providers.split(","))
    if "all" not in chosen:
        others &= chosen
    wanted |= {
        Step("aa", op, name): options.runs for op, names in installed.items() for name in names[1:] if name in others
    }
    return {step: runs for step, runs in wanted.items() if runs}


def next_step(wanted: dict[Step, int], done: dict[Step, int]) -> Step | None:
    """The step that is furthest behind its share; other providers begin when half of the rest is there."""
    firsts: dict[str, Step] = {}
    for step in wanted:
        if step.kind == "aa":
            firsts.setdefault(step.op, step)

    def progress(step: Step) -> float:
        other = step.kind == "aa" and step != firsts[step.op]
        return done[step] / wanted[step] + (AHEAD if other else 0.0)

    return min((step for step in wanted if done[step] < wanted[step]), key=progress, default=None)


def run(
    desks: Desks, device: Device, step: Step, number: int, options: argparse.Namespace
) -> tuple[record.Row, ValidateReport]:
    began = time.monotonic()
    harness = desks.harness(step.provider if step.kind == "aa" else options.planted_provider)
    if step.kind == "aa":
        report = run_twin(harness, step.op, device=device, cases=options.cases, provider=step.provider)
    else:
        plant: Literal["candidate", "baseline"] = "candidate" if step.side == "candidate" else "baseline"
        cases, by = options.planted_cases, options.planted_provider
        report = run_twin(harness, step.op, device=device, cases=cases, provider=by, plant=plant)
    seconds = round(time.monotonic() - began, 3)
    return step.__dict__ | {"run": number, "seconds": seconds} | _row(report), report


def _row(report: ValidateReport) -> record.Row:
    cases = [
        {
            "id": c.id,
            "verdict": c.verdict,
            "speedup": c.speedup,
            "ci95": c.ci95,
            "us": c.candidate_us,
            "plain": c.all_cold_speedup,
            "rounds": c.rounds,
            "reason": c.reason,
        }
        for c in report.cases
    ]
    return {
        "outcome": report.outcome.value,
        "summary": report.summary[:500],
        "winner": report.winner,
        "word": report.speed.verdict,
        "speedup": report.speed.speedup,
        "ci95": report.speed.ci95,
        "mode": report.speed.mode,
        "warnings": report.warnings,
        "cases": cases,
    }


def _providers(harness: Harness, device: Device, op: str, options: argparse.Namespace) -> list[str]:
    """Installed ones that have a kernel for every case, the one that is judged against first."""
    spec = harness.catalog.get(op)
    cases = harness.catalog.select(spec, device.kind, options.cases)

    def can(name: str) -> bool:
        one = provider(name)
        return bool(one.installed()) and all(one.supports(op, c.entry, c.form, c.dtype, device.kind) for c in cases)

    first = production(op, cases[0].entry, cases[0].form, cases[0].dtype, device.kind, spec.baselines)
    names = [first.name if first else "torch_eager"]
    return names + [name for name in spec.baselines if name not in names and can(name)]


def _needed(step: Step, there: list[record.Row]) -> float:
    known = [row["seconds"] for row in there if step.same(row)]
    first = _FIRST_COMPILED_S if step.provider == "torch_compile" else _FIRST_S
    return 1.3 * min(known[-3:]) if known else first


if __name__ == "__main__":
    sys.exit(main())
