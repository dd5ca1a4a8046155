"""``tests/gpu``, each test on record as soon as it has ended; what takes minutes is another part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.gpu_parts.context import Context, begin

TESTS = Path(__file__).parents[2] / "tests" / "gpu"
LEVELS = TESTS / "test_levels_on_gpu.py"


class Recorder:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not report.failed and not report.skipped:
            return
        ok = None if report.skipped else report.passed
        name = report.nodeid.removeprefix("tests/gpu/")
        why = "" if report.passed else report.longreprtext[-3000:]
        printed = "".join(text for title, text in report.sections if "stdout" in title)[-1500:]
        self.ctx.add(name, ok, seconds=round(report.duration, 2), why=why, printed=printed)


def main(argv: list[str] | None = None) -> None:
    run(begin("a", argv), str(TESTS), f"--ignore={LEVELS}")


def run(ctx: Context, *chosen: str) -> NoReturn:
    """Run the tests that ``chosen`` says, and exit as pytest does."""
    flags = ["-v", "-p", "no:cacheprovider", f"--junitxml={ctx.out / f'tests-{ctx.part}.xml'}", "--log-level=WARNING"]
    sys.exit(pytest.main([*chosen, *flags, "--durations=0"], plugins=[Recorder(ctx)]))


if __name__ == "__main__":
    main()
