"""Every installed baseline against itself over all cases, and 3% planted on either side."""

from __future__ import annotations

import contextlib
import time

from benchmarks import aa, aa_figures
from benchmarks.gpu_parts import record
from benchmarks.gpu_parts.context import Context, begin

FULL = ["--runs", "10", "--planted", "20", "--providers", "all", "--planted-provider", "torch_eager"]
DRY = ["--runs", "1", "--planted", "1", "--ops", "softmax", "--cases", "quick"]


def main(argv: list[str] | None = None) -> None:
    ctx = begin("c", argv)
    options = aa.arguments(DRY if ctx.dry else FULL)
    path = ctx.out / record.AA_ROWS
    with contextlib.ExitStack() as stack:
        until = time.monotonic() + ctx.left() - 5
        complete = aa.collect(aa.Desks(stack), options, path, until, kept=ctx.keep)
    judge(ctx, record.read(path), complete=complete)


def judge(ctx: Context, rows: list[record.Row], *, complete: bool) -> None:
    """Share of readings near 1, wrong words, winners and plants seen, as steps."""
    for line in aa_figures.lines(rows, cases=True):
        print(line, flush=True)
    by_place = aa_figures.against_itself(rows)
    for (op, name), one in by_place.items():
        # Times on a CPU only show that all of this runs.
        fine = not one.failed and (ctx.dry or not (one.wrong or one.winners))
        ctx.add(
            f"{op} {name}",
            fine if one.runs or one.failed else None,
            runs=one.runs,
            share=one.share,
            near=f"{one.near} of {len(one.readings)}",
            wrong=one.wrong[:10],
            winners=one.winners,
            failed=one.failed[:5],
        )
    for side, planted in aa_figures.planted(rows).items():
        if planted.runs:
            told = f"{planted.cases_seen} of {planted.cases}"
            ctx.add(
                f"planted {side}",
                ctx.dry or planted.seen == planted.runs,
                runs=planted.runs,
                seen=planted.seen,
                cases=told,
            )
    ctx.add("complete", True if complete else None)


if __name__ == "__main__":
    main()
