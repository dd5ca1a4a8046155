"""A plain Triton RMSNorm against the strongest installed baseline, and whether that baseline runs what it says."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks import roundtrip
from benchmarks.gpu_parts.context import Context, begin
from fk_core.child.baselines.base import production
from fk_core.harness import Harness
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest

TASKS = ("rms_norm", "silu_and_mul")
MARKS = {
    ("vllm", "rms_norm", "plain"): ("vllm", "rms_norm_kernel"),
    ("vllm", "rms_norm", "residual"): ("vllm", "fused_add_rms_norm_kernel"),
    ("vllm", "silu_and_mul", "plain"): ("vllm", "act_and_mul_kernel"),
    ("torch_compile", "rms_norm", "plain"): ("triton_",),
    ("torch_compile", "rms_norm", "residual"): ("triton_",),
}
"""Words in the name of a kernel that the provider has to launch."""


def main(argv: list[str] | None = None) -> None:
    ctx = begin("e", argv)
    with Harness() as harness:
        kind = harness.device().kind
        spec = harness.catalog.get("rms_norm")
        found = production("rms_norm", "RMSNorm", "plain", "bfloat16", kind, spec.baselines)
        strongest = found.name if found else "torch_eager"
        kernels(ctx, strongest)
        cases = "*/decode-16/*" if ctx.dry else "default"
        salt = int(time.time())
        for number in range(1 if ctx.dry else 3):
            if number and ctx.left() < 20:
                break
            request = ValidateRequest(op="rms_norm", source=roundtrip.source(salt + number), cases=cases, fresh=True)
            judge(ctx, f"triton rms_norm {number}", harness.validate(request), strongest)


def kernels(ctx: Context, which: str) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_parts.kernel_names", which, *TASKS]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(20.0, ctx.left() - 40), check=False)
    except subprocess.TimeoutExpired:
        ctx.add(f"kernels of {which}", False, why="no answer in time")
        return
    sys.stderr.write(done.stderr[-4000:])
    seconds = round(time.monotonic() - began, 1)
    if done.returncode:
        ctx.add(f"kernels of {which}", False, why=done.stderr[-1500:], seconds=seconds)
        return
    # A library may print before its kernels are listed.
    for task, forms in json.loads(done.stdout.strip().splitlines()[-1]).items():
        for form, names in forms.items():
            words = MARKS.get((which, task, form))
            right = None if words is None else any(all(word in name for word in words) for name in names)
            ctx.add(f"kernels of {which} for {task} {form}", right, names=names[:6], seconds=seconds)


def judge(ctx: Context, step: str, report: ValidateReport, strongest: str) -> None:
    ctx.keep(step, report, expect="accept")
    speed = report.speed
    passed = report.outcome is Outcome.PASSED and report.correct and not report.evidence
    for case in report.cases:
        print(
            f"  {case.id:58s} {case.candidate_us} us against {case.baseline_us} us, {case.verdict} "
            f"gated {case.speedup} {case.ci95} plain {case.all_cold_speedup} floor {case.floor_us}",
            flush=True,
        )
    ctx.add(
        step,
        passed and (ctx.dry or strongest in speed.baseline),
        outcome=report.outcome.value,
        baseline=speed.baseline,
        word=speed.verdict,
        speedup=speed.speedup,
        ci95=speed.ci95,
        winner=report.winner,
        mode=speed.mode,
        gated_and_plain={c.id.split("/", 1)[1]: (c.speedup, c.all_cold_speedup) for c in report.cases},
        warnings=report.warnings[:5],
        summary=report.summary[:300],
        seconds=report.seconds.total,
    )


if __name__ == "__main__":
    main()
