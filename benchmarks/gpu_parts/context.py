"""What every part is told, and where it leaves what it finds."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts import record
from fk_core.records.report import ValidateReport


@dataclass
class Context:
    part: str
    out: Path
    seconds: float
    dry: bool
    began: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def add(self, step: str, ok: bool | None, **more: Any) -> None:
        row = record.add(self.out, self.part, step, ok, **more)
        said = {True: "ok", False: "FAILED", None: "-"}[ok]
        told = {key: value for key, value in row.items() if key in more}
        print(f"[{self.part}] {said:6s} {step} {str(told)[:600]}", flush=True)

    def keep(self, step: str, report: ValidateReport, **more: Any) -> None:
        """Put a whole report beside the short records."""
        row = {"part": self.part, "step": step, **more, "report": report.model_dump(mode="json")}
        record.append(self.out / record.REPORTS, row)

    def rows(self) -> list[record.Row]:
        return record.read(self.out / record.RECORDS)

    def done(self) -> dict[str, record.Row]:
        """What earlier runs of this part said of each step."""
        return {step: row for (part, step), row in record.latest(self.rows()).items() if part == self.part}


def begin(part: str, argv: list[str] | None = None) -> Context:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    if options.dry:
        os.environ["FK_DEVICE"] = "cpu"
    return Context(part, options.out.absolute(), options.seconds, options.dry)
