"""Which calls a candidate has to get right besides the timed ones: shapes, values, relations, from one secret seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from fk_core.child.calls import make_call
from fk_core.child.distributions import DISTRIBUTIONS, GENERIC
from fk_core.child.formulas import names

Relation = Literal["", "same_values", "new_values", "sparse", "rolled", "other_argument", "strided", "row"]
SPARSE = 6
_CASE_SECRETS = ("large", "heavy", "shifted", "cancellation", "negative", "tiny")


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
    relation: Relation = ""
    base: int | None = None
    """Index in the plan of the call that ``relation`` speaks of; it comes earlier."""
    placement: Literal["new", "same"] = "new"
    """``same``: at the addresses of the base call, by writes that torch does not see; ``new``: at others."""
    gating: bool = True
    """A wrong answer rejects the candidate."""
    may_raise: bool = False
    """Raising an exception is a note and no failure: the shape or dtype is not among those asked for."""
    hidden: bool = False
    """The shape is in no case: it gates only inside the candidate's declared domain."""

    @property
    def generic(self) -> bool:
        """Whether the rms and row-scale tests hold for these values."""
        return self.distribution in GENERIC


@dataclass(frozen=True)
class Budget:
    """How large the reduced calls are. An interpreted Triton kernel takes about 1.5 ms a row on a CPU."""

    rows: int
    elements: int
    fresh_rows: int
    primes: tuple[int, ...]
    per_case: int
    further_sweep: int
    """Distributions for a configuration that differs from a swept one in its init arguments only."""


GPU_BUDGET = Budget(64, 1 << 21, 4, (67, 101, 149, 211, 307, 383), 3, 3)
CPU_BUDGET = Budget(2, 1 << 17, 1, (11, 13), 2, 2)
FRESH = 32


def plan(
    task: Mapping[str, Any],
    cases: Sequence[Mapping[str, Any]],
    seed: int,
    *,
    cpu: bool,
    budget: Budget | None = None,
) -> list[Probe]:
    """All correctness calls for ``cases`` (``CaseSpec.model_dump()``) of ``task`` (``TaskSpec.model_dump()``).

    Per case the full shape; per entry, form and dtype a sweep over the task's distributions, hidden shapes and calls
    that relate to earlier ones; 32 further calls of one small shape; and fp32 where the task lists it and no case has
    it.
    """
    return _Planner(task, seed, budget or (CPU_BUDGET if cpu else GPU_BUDGET)).lay_out(cases)


class _Planner:
    def __init__(self, task: Mapping[str, Any], seed: int, budget: Budget) -> None:
        self.task, self.budget = task, budget
        self.random = random.Random(seed)
        self.probes: list[Probe] = []

    def lay_out(self, cases: Sequence[Mapping[str, Any]]) -> list[Probe]:
        if not cases:
            return []
        ordered = sorted(cases, key=lambda case: self._elements(case, case["dims"]))
        for case in ordered:
            self._full(case)
        groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for case in ordered:
            groups.setdefault((case["entry"], case["form"], case["dtype"]), []).append(case)
        for group in groups.values():
            self._sweep(group)
            self._hidden(group)
            self._relations(next((case for case in group if self._has_rows(case)), group[0]))
        self._magnify(groups)
        self._fresh(ordered[0])
        return self.probes

    def _add(self, case: Mapping[str, Any], dims: Mapping[str, int], distribution: str, why: str, **more: Any) -> int:
        init = dict(case["init"])
        for name, source in self.task["init_of"].get(case["entry"], {}).items():
            if isinstance(source, str) and source in dims:
                init[name] = dims[source]
        fields: dict[str, Any] = {"dtype": case["dtype"], "case_id": None} | more
        self.probes.append(
            Probe(
                entry=case["entry"],
                form=case["form"],
                dims=dict(dims),
                init=init,
                distribution=distribution,
                seed=self.random.getrandbits(63),
                why=why,
                **fields,
            )
        )
        return len(self.probes) - 1

    def _full(self, case: Mapping[str, Any]) -> None:
        known = self.task["distributions"]
        secret = [name for name in _CASE_SECRETS if name in known]
        wanted = [name for name in ("normal", "outliers") if name in known]
        self.random.shuffle(secret)
        if self.budget.per_case < 3:
            wanted, secret = wanted[:1], wanted[1:] + secret
            self.random.shuffle(secret)
        for distribution in (wanted + secret)[: self.budget.per_case]:
            self._add(case, case["dims"], distribution, f"full shape, {distribution} values", case_id=case["id"])

    def _sweep(self, group: Sequence[Mapping[str, Any]]) -> None:
        """Every distribution once for the group; a few more for each further set of init arguments in it."""
        known = [name for name in self.task["distributions"] if name in DISTRIBUTIONS]
        turns = list(group)
        self.random.shuffle(turns)
        for number, distribution in enumerate(name for name in known if name != "normal"):
            self._reduced(turns[number % len(turns)], distribution)
        seen = {_init_key(turns[0])}
        for case in turns[1:]:
            if _init_key(case) in seen:
                continue
            seen.add(_init_key(case))
            for distribution in self.random.sample(known, min(len(known), self.budget.further_sweep)):
                self._reduced(case, distribution)

    def _reduced(self, case: Mapping[str, Any], distribution: str) -> None:
        dims = self._small(case, case["dims"], self.budget.rows)
        self._add(case, dims, distribution, f"few rows, {distribution} values")

    def _hidden(self, group: Sequence[Mapping[str, Any]]) -> None:
        ranges = self.task["hidden"]
        case = self.random.choice(list(group))
        leading = self._leading(case)
        widths = [name for name in ranges if name not in leading]
        if leading and leading[0] in ranges:
            low, high, _ = ranges[leading[0]]
            for rows in (1, 7, self.random.choice(self.budget.primes)):
                if low <= rows <= high:
                    small = self._small(case, case["dims"], rows)
                    self._add(case, small | {leading[0]: rows}, "normal", f"{rows} rows, in no case", hidden=True)
        for _ in range(2 if widths else 0):
            drawn = {name: self._within(ranges[name]) for name in widths}
            dims = self._small(case, case["dims"] | drawn, 3)
            said = ", ".join(f"{name} {value}" for name, value in drawn.items())
            self._add(
                case, dims, self.random.choice(("normal", "shifted", "large")), f"{said}, in no case", hidden=True
            )

    def _relations(self, case: Mapping[str, Any]) -> None:
        dims = self._small(case, case["dims"], max(2, min(self.budget.rows, 8)))
        first = self._add(case, dims, "normal", "first of several related calls")
        # Right behind the first, so that whoever remembers one call by a few of its elements takes it for that one.
        self._add(case, dims, "normal", f"{SPARSE} elements changed at the same address", relation="sparse",
                  base=first, placement="same")  # fmt: skip
        self._add(case, dims, "normal", "new values at the same address", relation="new_values", base=first,
                  placement="same")  # fmt: skip
        self._add(case, dims, "normal", "the same values at another address", relation="same_values", base=first)
        if len(self._arguments(case)) > 1:
            self._add(case, dims, "normal", "the same first argument with another second one",
                      relation="other_argument", base=first, placement="same")  # fmt: skip
        leading = self._leading(case)
        if leading and dims[leading[0]] > 1:
            self._add(case, dims | dict.fromkeys(leading, 1), "normal", "the first row of an earlier call, alone",
                      relation="row", base=first)  # fmt: skip
        if leading:
            self._add(case, dims, "normal", "rows with a gap between them", relation="strided", base=first,
                      may_raise=True)  # fmt: skip
        if "integers" in self.task["distributions"]:
            whole = self._add(case, dims, "integers", "whole numbers, before they are moved by one place")
            self._add(case, dims, "integers", "the same whole numbers moved by one place", relation="rolled",
                      base=whole, placement="same")  # fmt: skip

    def _magnify(self, groups: Mapping[tuple[str, str, str], Sequence[Mapping[str, Any]]]) -> None:
        """fp32 shows what rounding to 16 bits hides."""
        if "float32" not in self.task["dtypes"]:
            return
        for (entry, form, dtype), group in groups.items():
            if dtype == "float32" or (entry, form, "float32") in groups:
                continue
            for distribution in [name for name in ("normal", "large") if name in self.task["distributions"]]:
                case = self.random.choice(list(group))
                dims = self._small(case, case["dims"], max(2, self.budget.rows // 4))
                why = f"in float32, {distribution} values: shows what rounding to {dtype} hides"
                self._add(case, dims, distribution, why, dtype="float32", may_raise=True)

    def _fresh(self, case: Mapping[str, Any]) -> None:
        dims = self._small(case, case["dims"], self.budget.fresh_rows)
        for number in range(FRESH):
            self._add(case, dims, "normal", f"fresh call {number + 1} of {FRESH} of one shape")

    def _within(self, bounds: Sequence[int]) -> int:
        low, high, step = bounds
        return self.random.randrange(low, high + 1, step)

    def _arguments(self, case: Mapping[str, Any]) -> list[str]:
        arguments: list[str] = self.task["entries"][case["entry"]]["forms"][case["form"]]["arguments"]
        return arguments

    def _leading(self, case: Mapping[str, Any]) -> list[str]:
        """Dimensions that only say how many rows there are."""
        shape = self.task["tensors"][self._arguments(case)[0]]["shape"]
        inner = names(shape[-1]) | set(
            value for value in self.task["init_of"].get(case["entry"], {}).values() if isinstance(value, str)
        )
        found = [name for side in shape[:-1] for name in sorted(names(side)) if name not in inner]
        return list(dict.fromkeys(found))

    def _has_rows(self, case: Mapping[str, Any]) -> bool:
        return any(case["dims"][name] > 1 for name in self._leading(case)[:1])

    def _small(self, case: Mapping[str, Any], dims: Mapping[str, int], rows: int) -> dict[str, int]:
        """``dims`` with at most ``rows`` rows, and fewer where rows are long."""
        leading = self._leading(case)
        width = self._elements(case, dict(dims) | dict.fromkeys(leading, 1))
        left = max(1, min(rows, self.budget.elements // max(1, width)))
        small = dict(dims)
        for name in leading:
            small[name] = max(1, min(small[name], left))
            left = max(1, left // small[name])
        return small

    def _elements(self, case: Mapping[str, Any], dims: Mapping[str, int]) -> int:
        call = make_call(
            self.task, entry=case["entry"], form=case["form"], dims=dims, init=case["init"], dtype=case["dtype"]
        )
        return sum(prod(shape) for shape in call.shapes.values())


def _init_key(case: Mapping[str, Any]) -> str:
    return repr(sorted(case["init"].items()))
