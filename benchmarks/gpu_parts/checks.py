"""Promises that only a GPU can test: read from what the other parts left, and one probe of the driver's own graphs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_parts import findings, record
from benchmarks.gpu_parts.context import Context, begin

PROBE = "benchmarks.gpu_parts.child_graph"


def main(argv: list[str] | None = None) -> None:
    ctx = begin("g", argv)
    child_graphs(ctx)
    records = record.latest(ctx.rows())
    for found in findings.derive(records, record.read(ctx.out / record.REPORTS), logs(ctx.out)):
        # Cheats that only a GPU can show pass on a CPU.
        ok = None if ctx.dry and found.step.endswith("is rejected") else found.ok
        ctx.add(found.step, ok, **findings.as_detail(found))


def child_graphs(ctx: Context) -> None:
    try:
        done = subprocess.run([sys.executable, "-m", PROBE], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        ctx.add("nodes of child graphs are counted", False, said="no answer in time")
        return
    said = (done.stdout or done.stderr).strip()[-800:]
    ctx.add("nodes of child graphs are counted", {0: True, 2: None}.get(done.returncode, False), said=said)


def logs(out: Path) -> dict[str, str]:
    """What the parts wrote, but for that of the kills, where zygotes and judges die by intent."""
    files = [path for path in sorted((out / "logs").glob("*.log")) if not path.name.startswith(("f-", "g-"))]
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in files}


if __name__ == "__main__":
    main()
