"""What ``list_ops`` and ``create_stub`` answer."""

from __future__ import annotations

from pydantic import Field

from fk_core.records.base import Number, Record


class OpSummary(Record):
    name: str
    level: int
    summary: str
    entries: list[str]
    models: list[str]
    cases: int
    """Judged on the device at hand."""
    cases_by_device: dict[str, int] = Field(default_factory=dict)
    """How many on a ``cpu`` and on a GPU (``cuda``)."""
    baselines_found: list[str] = Field(default_factory=list)
    baselines_missing: list[str] = Field(default_factory=list)


class OpsList(Record):
    ops: list[OpSummary]
    notes: list[str] = Field(default_factory=list)
    """What the words mean."""


class StubCase(Record):
    id: str
    call: str
    """The construction and the call, as Python."""
    calls: int | None = None
    floor_us: Number = None
    baseline_us: Number = None
    """Time to beat, where this machine has measured it."""


class Stub(Record):
    op: str
    source: str
    """A candidate file to fill in: classes, signatures, contract."""
    contract: list[str]
    cases: list[StubCase]
    cases_total: int
    tolerance: str
    baselines: list[str]
    written_to: str = ""
    notes: list[str] = Field(default_factory=list)
    next_steps: list[str] = Field(default_factory=list)
