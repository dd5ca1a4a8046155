"""What timing found out about one case."""

from __future__ import annotations

from dataclasses import dataclass, field

from fk_core.records.task import CaseSpec
from fk_core.stopping import Estimate


@dataclass
class CaseTiming:
    """What was measured of one case; ``estimate`` is of ln(baseline time / candidate time)."""

    case: CaseSpec
    mode: str = ""
    estimate: Estimate | None = None
    plain: Estimate | None = None
    eager: Estimate | None = None
    candidate_us: float | None = None
    baseline_us: float | None = None
    floor_us: float | None = None
    stopped_because: str = ""
    reason: str = ""
    """Why there is no estimate."""
    capturable: bool | None = None
    capture_reason: str = ""
    programmatic: bool = False
    notes: list[str] = field(default_factory=list)

    def fresh(self) -> CaseTiming:
        """The same case before it was timed: what is known of its captures and its floor stays."""
        kept = ("case", "floor_us", "capturable", "capture_reason", "programmatic")
        return CaseTiming(**{name: getattr(self, name) for name in kept})
