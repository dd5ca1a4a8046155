"""A harness that answers from a script, so that the server is tested without devices, sandboxes or torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fk_core.errors import Cancelled, UnknownAttempt, UnknownTask
from fk_core.records.device import Check, Device, DeviceStatus, DoctorReport, GpuStatus
from fk_core.records.listing import OpsList, OpSummary, Stub, StubCase
from fk_core.records.report import CaseReport, Evidence, Mismatch, Outcome, Speed, ValidateReport, ValidateRequest
from fk_core.settings import Settings, load

OPS = ("rms_norm", "silu_and_mul", "softmax")


def settings_in(home: Path) -> Settings:
    return load({"FK_HOME": str(home), "FK_LOCK_DIR": str(home / "locks")})


@dataclass
class FakeAttempt:
    running: bool = False
    pid: int = 0
    client: str = ""


class FakeJournal:
    """Attempts by id, in memory."""

    def __init__(self) -> None:
        self.attempts: dict[str, tuple[ValidateRequest, ValidateReport | None]] = {}
        self.lines: dict[str, FakeAttempt] = {}

    def read(self, attempt_id: str) -> tuple[ValidateRequest, ValidateReport | None]:
        self.attempt(attempt_id)
        return self.attempts[attempt_id]

    def attempt(self, attempt_id: str) -> FakeAttempt:
        if attempt_id not in self.attempts:
            raise UnknownAttempt(f"no attempt {attempt_id!r}")
        return self.lines.setdefault(attempt_id, FakeAttempt())


class FakeHarness:
    """The verbs of the harness. The source says what a validation does: a line ``#sleep 3``, ``#raise NAME`` ..."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.journal = FakeJournal()
        self.started = 0
        self.stopped = 0
        self.closed = False
        self.line = 0
        """How many others are ahead at the device."""
        self.warmed = threading.Event()
        self.measured_again = threading.Event()
        self.problems: list[str] = []
        """What measuring again says that went wrong."""
        self.reports: dict[str, ValidateReport] = {}
        self.make_report: Callable[[ValidateRequest, str], ValidateReport] = passing
        self.raises: dict[str, BaseException] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        self.warmed.set()

    def measure_again(self) -> list[str]:
        self.measured_again.set()
        self._maybe_raise("measure_again")
        return self.problems

    def close(self) -> None:
        self.closed = True

    def list_ops(self, level: int = 0, model: str = "", query: str = "") -> OpsList:
        self._maybe_raise("list_ops")
        ops = [
            OpSummary(name=op, level=1, summary=f"{op} of a model", entries=["X"], models=["M"], cases=3) for op in OPS
        ]
        return OpsList(ops=[op for op in ops if query in op.name and level in (0, op.level)])

    def create_stub(self, op: str, dtype: str = "", out_path: str = "") -> Stub:
        self._maybe_raise("create_stub")
        if op not in OPS:
            raise UnknownTask(f"no operator {op!r}", hint="Nearest: rms_norm; `fk ops` lists all")
        source = f"class Stub:  # {op} {dtype}\n    pass\n"
        if out_path:
            Path(out_path).write_text(source, encoding="utf-8")
        cases = [StubCase(id=f"{op}/case{i}", call="y = m(x)", calls=i) for i in range(3)]
        return Stub(
            op=op,
            source=source,
            contract=["be right"],
            cases=cases,
            cases_total=3,
            tolerance="5",
            baselines=["eager"],
            written_to=out_path,
        )

    def gpu_status(self) -> GpuStatus:
        self._maybe_raise("gpu_status")
        device = Device(kind="cpu", uuid="cpu", name="a processor")
        return GpuStatus(devices=[DeviceStatus(device=device)], lock_dir=str(self.settings.lock_dir))

    def doctor(self, progress: Callable[[str, float | None], None] | None = None) -> DoctorReport:
        self._maybe_raise("doctor")
        return DoctorReport(checks=[Check(name="python", state="ok", found="3.11")], sandbox="process")

    def cached_report(self, request: ValidateRequest) -> ValidateReport | None:
        self._maybe_raise("cached_report")
        if request.op not in OPS:
            raise UnknownTask(f"no operator {request.op!r}", hint="Nearest: rms_norm; `fk ops` lists all")
        return self.reports.get(request.source)

    def validate(
        self,
        request: ValidateRequest,
        progress: Callable[[str, float | None], None] = lambda doing, share: None,
        cancel: threading.Event | None = None,
        begun: Callable[[str], None] | None = None,
        queued: Callable[[int], None] = lambda ahead: None,
    ) -> ValidateReport:
        with self._lock:
            self.started += 1
            attempt_id = f"a-{self.started:04d}"
        self.journal.attempts[attempt_id] = (request, None)
        kept = self.journal.lines[attempt_id] = FakeAttempt(running=True)
        if begun is not None:
            begun(attempt_id)
        try:
            self._maybe_raise("validate")
            self._wait_in_line(queued)
            for line in request.source.splitlines():
                if line.startswith("#sleep "):
                    self._sleep(float(line.split()[1]), progress, cancel)
            report = self.make_report(request, attempt_id)
        finally:
            with self._lock:
                self.stopped += 1
            kept.running = False
        self.journal.attempts[attempt_id] = (request, report)
        self.reports[request.source] = report.model_copy(update={"identical_to": attempt_id})
        return report

    def _sleep(
        self, seconds: float, progress: Callable[[str, float | None], None], cancel: threading.Event | None
    ) -> None:
        start = time.monotonic()
        while (spent := time.monotonic() - start) < seconds:
            progress("timing", spent / seconds)
            if cancel is not None and cancel.wait(0.02):
                raise Cancelled("cancelled by the caller")

    def _wait_in_line(self, queued: Callable[[int], None]) -> None:
        """Until ``line`` is empty."""
        while self.line:
            queued(self.line)
            time.sleep(0.02)
        queued(0)

    def _maybe_raise(self, verb: str) -> None:
        if verb in self.raises:
            raise self.raises[verb]


def passing(request: ValidateRequest, attempt_id: str) -> ValidateReport:
    return ValidateReport(
        op=request.op,
        level=1,
        outcome=Outcome.PASSED,
        correct=True,
        attempt_id=attempt_id,
        summary="right",
        cases=[CaseReport(id="case0", outcome=Outcome.PASSED, speedup=1.1)],
    )


def wrong(request: ValidateRequest, attempt_id: str) -> ValidateReport:
    mismatch = Mismatch(output="y", index=[0, 3], expected=1.0, got=1.5, pattern="all rows")
    case = CaseReport(id="case0", outcome=Outcome.WRONG_VALUES, first_mismatch=mismatch)
    return ValidateReport(
        op=request.op, level=1, outcome=Outcome.WRONG_VALUES, blame="candidate", attempt_id=attempt_id, cases=[case]
    )


def tampered(request: ValidateRequest, attempt_id: str) -> ValidateReport:
    evidence = Evidence(kind="timer", what="time.perf_counter was replaced", where="candidate.py:14")
    return ValidateReport(
        op=request.op,
        level=1,
        outcome=Outcome.TAMPERED,
        blame="candidate",
        attempt_id=attempt_id,
        evidence=[evidence],
    )


def huge(request: ValidateRequest, attempt_id: str) -> ValidateReport:
    """A report far over every limit, with what is hardest to send in it."""
    bad = CaseReport(
        id="op/model/tp1/prefill/bf16/16384x4096",
        outcome=Outcome.WRONG_VALUES,
        reason="wrong " * 500,
        max_abs_error=float("nan"),
        max_error_ratio=float("inf"),
        speedup=float("-inf"),
        first_mismatch=Mismatch(output="y", index=[1, 2], expected=1.0, got=float("nan"), pattern="last rows"),
    )
    good = [
        CaseReport(
            id=f"op/model/tp1/decode-{i}/bf16/{i}x4096",
            outcome=Outcome.PASSED,
            candidate_us=1.5,
            baseline_us=2.5,
            speedup=1.0 + i,
            ci95=(1.0, 1.1),
            calls=64,
            rounds=12,
        )
        for i in range(200)
    ]
    nasty = "\x1b[31mred\x1b[0m \ud800 \x00 " + "é" * 1_000_000
    return ValidateReport(
        op=request.op,
        level=1,
        outcome=Outcome.WRONG_VALUES,
        blame="candidate",
        attempt_id=attempt_id,
        summary="one case is wrong",
        cases=[*good, bad],
        speed=Speed(others_timed={"eager": float("nan")}),
        evidence=[Evidence(kind="timer", what="x" * 5000) for _ in range(40)],
        warnings=[f"warning {i} " + "w" * 300 for i in range(100)],
        next_steps=["mend it"] * 30,
        log_tail=nasty,
    )


def report_of(result: Any) -> dict[str, Any]:
    """The structured envelope of a tool result."""
    assert result.structured_content is not None, result.content
    return dict(result.structured_content)
