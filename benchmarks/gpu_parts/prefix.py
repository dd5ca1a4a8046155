"""Whether a prefix of calls before the first event takes the bias of the shortest calls away: softmax with itself."""

from __future__ import annotations

import dataclasses
import math
import statistics

from benchmarks.gpu_parts.context import begin
from fk_core import settings
from fk_core.calibrate import run_twin
from fk_core.harness import Harness

PREFIXES = (0, 4)
RUNS = 4
_RUN_S = 12.0


def main(argv: list[str] | None = None) -> None:
    ctx = begin("h", argv)
    seen: dict[int, dict[str, list[float]]] = {prefix: {} for prefix in PREFIXES}
    for number in range(1 if ctx.dry else RUNS):
        for prefix in PREFIXES:
            if ctx.left() < _RUN_S and number:
                break
            loaded = settings.load()
            timing = dataclasses.replace(loaded.timing, prefix=prefix)
            with Harness(dataclasses.replace(loaded, timing=timing)) as harness:
                device = harness.device("auto")
                cases = "quick" if ctx.dry else "default"
                report = run_twin(harness, "softmax", device=device, cases=cases, provider="torch_eager")
            ctx.keep(f"prefix {prefix} run {number}", report)
            for case in report.cases:
                if case.speedup is not None:
                    seen[prefix].setdefault(case.id, []).append(case.speedup)
    for prefix, cases_of in seen.items():
        middle = {case: statistics.median(ratios) for case, ratios in cases_of.items()}
        worst = max((abs(math.log(ratio)) for ratio in middle.values()), default=math.nan)
        ctx.add(f"prefix {prefix}", None, worst=round(worst, 5), ratios={c: round(r, 5) for c, r in middle.items()})


if __name__ == "__main__":
    main()
