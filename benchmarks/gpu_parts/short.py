"""The bias that is left on the shortest calls, and what lessens it: baselines against themselves, new processes."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

from benchmarks.gpu_parts.context import Context, begin
from fk_core.calibrate import run_twin
from fk_core.harness import Harness

VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "8 layouts": {"short_layouts": 8},
    "24 layouts": {"short_layouts": 24},
}
"""Changes to ``settings.Timing``."""
CASES = (("softmax", "*/64x4"), ("rms_norm", "*/decode-1/*"), ("silu_and_mul", "*/decode-1*"))
RUNS = 8
_ROUND_S = 15.0


def main(argv: list[str] | None = None) -> None:
    ctx = begin("h", argv)
    seen: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in VARIANTS}
    words: dict[str, list[str]] = {name: [] for name in VARIANTS}
    with Harness() as harness:
        usual = harness.settings
        for number in range(1 if ctx.dry else RUNS):
            if number and ctx.left() < _ROUND_S:
                break
            for name, change in VARIANTS.items():
                harness.settings = dataclasses.replace(usual, timing=dataclasses.replace(usual.timing, **change))
                for op, cases in CASES:
                    report = run_twin(harness, op, device=harness.device("auto"), cases="quick" if ctx.dry else cases)
                    ctx.keep(f"{name} run {number}", report)
                    for case in report.cases:
                        if case.speedup is not None and case.baseline_us is not None:
                            seen[name].setdefault(case.id, []).append((math.log(case.speedup), case.baseline_us))
                            words[name].append(case.verdict)
    for name, cases_of in seen.items():
        tell(ctx, name, cases_of, words[name])


def tell(ctx: Context, name: str, cases_of: dict[str, list[tuple[float, float]]], words: list[str]) -> None:
    """For each case how far from 1 a run reads, in nanoseconds a call: mean, and root mean square."""
    rows = {}
    for case, found in cases_of.items():
        errors = [1e3 * log * us for log, us in found]
        rows[case.split("/", 1)[1]] = {
            "us": round(statistics.median(us for _, us in found), 3),
            "mean_ns": round(statistics.fmean(errors), 1),
            "rms_ns": round(math.sqrt(statistics.fmean([e * e for e in errors])), 1),
            "most_ns": round(max(map(abs, errors)), 1),
        }
    wrong = sum(word in ("faster", "slower") for word in words)
    ctx.add(name, None, of=len(words), wrong=wrong, same=words.count("same"), cases=rows)


if __name__ == "__main__":
    main()
