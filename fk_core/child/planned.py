"""One call of the plan, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fk_core.child.distributions import GENERIC
from fk_core.child.layouts import Layout

Relation = Literal["", "same_values", "new_values", "sparse", "rolled", "other_argument", "row"]


@dataclass(frozen=True)
class Probe:
    """One call whose outputs are compared with the oracle."""

    case_id: str | None
    """The case that it stands for at full size; None for reduced and hidden shapes."""
    entry: str
    form: str
    dims: dict[str, int]
    init: dict[str, Any]
    dtype: str
    distribution: str
    seed: int
    why: str
    """For a person, without the secret seed."""
    level: float | None = None
    """Where in its range a distribution of scales lies, from 0 to 1."""
    leading: tuple[int, ...] = ()
    """Sides that stand in place of the form's leading dimension."""
    layout: Layout = ""
    """How the arguments lie in memory."""
    unless: int | None = None
    """Index of the call that this one stands in for: made only where that lies outside the candidate's domain."""
    relation: Relation = ""
    base: int | None = None
    """Index in the plan of the call that ``relation`` speaks of; it comes earlier."""
    placement: Literal["new", "same"] = "new"
    """``same``: at the addresses of the base call, by writes that torch does not see; ``new``: at others."""
    gating: bool = True
    """A wrong answer rejects the candidate."""
    may_raise: bool = False
    """Raising an exception is a note and no failure: the shape, dtype or layout is not among those asked for."""
    hidden: bool = False
    """The shape is in no case: it gates only inside the candidate's declared domain."""

    @property
    def generic(self) -> bool:
        """Whether the rms and row-scale tests hold for these values."""
        return self.distribution in GENERIC
