"""The timing against itself: every baseline in the candidate's place, then with a planted 3% on either side.

    python benchmarks/aa.py [--runs 10] [--planted 20] [--ops rms_norm] [--cases default] [--providers all] [--out F]

Prints, per operator and provider, the ratios of all cases over the runs, how many are within 0.5% of 1, every verdict
other than same or inconclusive, and how often the planted change was seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from fk_core.calibrate import run_twin
from fk_core.child.baselines.base import provider
from fk_core.harness import Harness


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--planted", type=int, default=20)
    parser.add_argument("--ops", default="rms_norm,silu_and_mul,softmax")
    parser.add_argument("--cases", default="default")
    parser.add_argument("--planted-cases", default="quick")
    parser.add_argument("--providers", default="first", help="first, or all that are installed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    rows = []
    with Harness() as harness:
        device = harness.device(options.device)
        harness.desk(device).warm()
        floor = harness.floors.of(device)
        print(f"device {device.name} {device.driver}, floor in use {100 * floor:.2f}%", flush=True)
        for op in options.ops.split(","):
            spec = harness.catalog.get(op)
            names = [""]
            if options.providers == "all":
                names = [b for b in spec.baselines if provider(b).installed()]
            for name in names:
                rows += against_itself(harness, op, name, device, options)
        if options.planted:
            rows += planted(harness, device, options)
    if options.out:
        Path(options.out).write_text(json.dumps(rows), encoding="utf-8")


def against_itself(harness, op, name, device, options):
    rows, ratios, odd, winners, began = [], {}, [], 0, time.monotonic()
    for run in range(options.runs):
        report = run_twin(harness, op, device=device, cases=options.cases, provider=name)
        if report.outcome.value != "PASSED":
            print(op, name, "run", run, report.outcome.value, report.summary, flush=True)
            continue
        winners += report.winner
        if run < 2:
            detail = {k: v for k, v in report.seconds.detail.items() if v > 0.02}
            print(op, "run", run, report.seconds.model_dump(exclude={"detail"}), detail, flush=True)
        for case in report.cases:
            if case.speedup is None:
                print(op, name, case.id, "not timed:", case.reason, flush=True)
                continue
            ratios.setdefault(case.id, []).append(case)
            rows.append({"op": op, "provider": name, "run": run, **case.model_dump(mode="json")})
            if case.verdict in ("faster", "slower"):
                odd.append((case.id, case.verdict, round(case.speedup, 4)))
    flat = [c.speedup for cases in ratios.values() for c in cases]
    inside = sum(abs(r - 1) <= 0.005 for r in flat)
    took = time.monotonic() - began
    print(
        f"\n{op} {name or 'first provider'}: {inside} of {len(flat)} within 0.5% "
        f"({100 * inside / max(1, len(flat)):.1f}%), faster or slower: {odd or 'none'}, winners: {winners}, "
        f"{took / max(1, options.runs):.2f} s a run",
        flush=True,
    )
    for case, cases in ratios.items():
        values = [c.speedup for c in cases]
        print(
            f"  {case:58s} {min(values):.4f} to {max(values):.4f} sd {100 * statistics.pstdev(values):.2f}% "
            f"us {cases[0].candidate_us:.3f} rounds {[c.rounds for c in cases]} plain "
            f"{[round(c.all_cold_speedup, 4) for c in cases if c.all_cold_speedup][:4]}",
            flush=True,
        )
    return rows


def planted(harness, device, options):
    rows = []
    for side, wanted in (("candidate", "slower"), ("baseline", "faster")):
        seen, cases_seen, cases_all, values = 0, 0, 0, []
        for run in range(options.planted):
            op = options.ops.split(",")[run % len(options.ops.split(","))]
            report = run_twin(harness, op, device=device, cases=options.planted_cases, plant=side)
            seen += report.speed.verdict == wanted
            cases_seen += sum(c.verdict == wanted for c in report.cases)
            cases_all += len(report.cases)
            values.append(report.speed.speedup)
            rows.append({"op": op, "planted": side, "report": report.speed.model_dump(mode="json")})
        shown = [round(v, 4) for v in values if v is not None]
        print(
            f"\nplanted 3% on the {side}: {wanted} in {seen} of {options.planted} runs; "
            f"{cases_seen} of {cases_all} cases; op ratios {shown}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
