"""All that a validation collects on its way to the report, and how the outcome gets into it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fk_core.domain import EVERYTHING, Domain
from fk_core.fault import CandidateFault
from fk_core.records.device import Device
from fk_core.records.report import BEGUN, NOT_REACHED, CaseReport, Evidence, Machine, Outcome, ValidateRequest
from fk_core.records.task import CaseSpec, TaskSpec
from fk_core.timings import CaseTiming


@dataclass
class Hearing:
    request: ValidateRequest
    spec: TaskSpec
    cases: list[CaseSpec]
    device: Device
    reports: dict[str, CaseReport] = field(default_factory=dict)
    outcome: Outcome = Outcome.PASSED
    reason: str = ""
    """Its first line is what a summary shows; further ones quote the candidate's exception."""
    evidence: list[Evidence] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    measured: list[CaseTiming] = field(default_factory=list)
    flags: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    detail: dict[str, float] = field(default_factory=dict)
    baseline: str = ""
    log_tail: str = ""
    sandbox: str = ""
    clocks: str = ""
    floor: float = 0.0
    """The machine's own error, as it is kept."""
    crowd: str = ""
    """See ``Machine``; of this try."""
    crowd_floor: float = 0.0
    """The least that times are taken to be off by where others crowded the machine."""
    machine: Machine | None = None
    domain: Domain = EVERYTHING
    """What the candidate says it supports; ``cases`` lie in it, ``outside`` do not."""
    outside: list[CaseSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Nothing is known yet; after a first try, nothing but its warnings and seconds."""
        self.reports = {
            c.id: CaseReport(id=c.id, outcome=Outcome.NOT_RUN, reason=NOT_REACHED, calls=c.calls) for c in self.cases
        }
        self.outcome, self.reason, self.evidence, self.measured, self.flags = Outcome.PASSED, "", [], [], {}
        self.crowd = ""

    @property
    def floor_in_use(self) -> float:
        """What times are taken to be off by."""
        return max(self.floor, self.crowd_floor) if self.crowd else self.floor

    @contextlib.contextmanager
    def clock(self, name: str, waited: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
        """Add up the seconds of the block, but for those by which ``waited`` grows: they are counted elsewhere."""
        began = time.monotonic() - waited()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - waited() - began)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def correct(self) -> None:
        for case_id, report in self.reports.items():
            self.reports[case_id] = report.model_copy(update={"outcome": Outcome.PASSED, "reason": ""})

    def ended(self, outcome: Outcome, reason: str) -> None:
        """Not by the candidate's doing: no case is failed, those not reached stay so."""
        self.outcome, self.reason = outcome, reason
        self._not_run(f"the validation ended before that, {outcome.value}")

    def refused(self, outcome: Outcome, reason: str) -> None:
        """The source can't even be tried."""
        self.outcome, self.reason = outcome, reason
        self._not_run(f"the file was refused, {outcome.value}")

    def failed(self, fault: CandidateFault) -> None:
        self.outcome, self.reason, self.evidence = fault.outcome, fault.reason, fault.evidence
        failed = [fault.case] if fault.case in self.reports else list(self.reports)[:1] if fault.mismatch else []
        infinite = fault.outcome is Outcome.NON_FINITE
        for case_id in failed:
            judged = fault.judged.get("judgement") or {}
            self.reports[case_id] = self.reports[case_id].model_copy(
                update={
                    "outcome": fault.outcome,
                    "reason": fault.reason.splitlines()[0][:600],
                    "first_mismatch": fault.mismatch,
                    # Those of the finite elements would look as if the case were nearly right.
                    **{name: None if infinite else judged.get(name) for name in ("max_abs_error", "max_error_ratio")},
                }
            )
        for case_id, report in self.reports.items():
            if report.outcome is Outcome.PASSED and fault.outcome is Outcome.TAMPERED:
                self.reports[case_id] = report.model_copy(
                    update={"outcome": Outcome.NOT_RUN, "reason": "not believed: see the evidence"}
                )
        self._not_run(f"the candidate failed before that, {fault.outcome.value}")

    def _not_run(self, why: str) -> None:
        for case_id, report in self.reports.items():
            if report.outcome is Outcome.NOT_RUN and report.reason in (NOT_REACHED, BEGUN):
                self.reports[case_id] = report.model_copy(update={"reason": f"{report.reason}: {why}"})
