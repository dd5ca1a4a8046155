"""How long an agent waits, through client and server: ``benchmarks/roundtrip.py``."""

from __future__ import annotations

import argparse
import asyncio
import statistics

from benchmarks import roundtrip
from benchmarks.gpu_parts.context import begin
from fk_core.records.report import ValidateReport

GOALS = {"warm": 1.8, "identical": 0.05}
"""Seconds, of the median."""


def main(argv: list[str] | None = None) -> None:
    ctx = begin("d", argv)
    cases = "*/decode-16/*" if ctx.dry else "rms_norm/Llama-3.1-8B/*"
    options = argparse.Namespace(repeats=1 if ctx.dry else 8, pause=0.5, cases=cases)
    out = asyncio.run(roundtrip.measure(options))
    roundtrip.show(out)
    for number, report in enumerate(out["reports"]):
        ctx.keep(f"warm {number}", ValidateReport.model_validate(report))
    for name in ("warm", "hurried", "seen", "identical"):
        middle = statistics.median(out[name])
        ok = None if ctx.dry or name not in GOALS else middle <= GOALS[name]
        ctx.add(name, ok, median=middle, least=min(out[name]), most=max(out[name]), calls=len(out[name]))
    exclusive = statistics.median(report["seconds"]["gpu_exclusive"] for report in out["reports"])
    ctx.add("exclusive", None if ctx.dry else exclusive <= 1.0, median=exclusive)
    passed = all(report["outcome"] == "PASSED" for report in out["reports"])
    ctx.add("verdicts", passed, cold_s=out["cold_s"], tools_s=out["tools_s"])


if __name__ == "__main__":
    main()
