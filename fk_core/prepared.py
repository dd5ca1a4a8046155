"""A case that both sides have laid out, and how either is asked for a turn of its captured graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fk_core.fault import CandidateFault
from fk_core.records.claims import LayoutClaim
from fk_core.records.report import Evidence, Outcome
from fk_core.timings import CaseTiming

PRIME, TIMED = 1, 2
"""Batches of a turn that warm the clocks, and batches that are timed."""


@dataclass
class Prepared:
    """``calls`` slots of ``block`` bytes, and the seeds of the captures."""

    timing: CaseTiming
    calls: int
    block: int
    seeds: list[tuple[int, int]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    """Where whole outputs go."""
    layouts: list[LayoutClaim] = field(default_factory=list)
    """What both sides captured, as the baseline says it; empty where the case is timed eagerly."""
    graph_baseline: bool = False


def turn_order(p: Prepared, layout: int, kind: str, timed: int = TIMED) -> dict[str, Any]:
    """What either side is asked to replay."""
    case = p.timing.case.id
    return {"do": "turn", "case": case, "layout": layout, "kind": kind, "prime": PRIME, "timed": timed}


def forged(what: str, case: str) -> CandidateFault:
    evidence = Evidence(
        kind="protocol",
        what=what,
        instead="leave the harness's own objects in the process alone; only define the class",
    )
    return CandidateFault(Outcome.TAMPERED, what, [evidence], case)
