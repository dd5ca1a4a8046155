"""Which calls a candidate has to get right besides the timed ones: shapes, values, relations, from one secret seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fk_core.child import row_counts, split_rows
from fk_core.child.calls import init_defaults, make_call
from fk_core.child.distributions import DISTRIBUTIONS, SCALES
from fk_core.child.formulas import names
from fk_core.child.layouts import Layout
from fk_core.child.planned import Probe

SPARSE = 6
_ANYWHERE = ("low_rows", "masked", "nan", "huge", "tiny")
"""Values that kernels treat on their own, so that they are tried at a width of no case, too, where a tail begins."""
_CASE_SECRETS = ("large", "heavy", "shifted", "cancellation", "negative", "tiny", "low_rows")


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
    form_rows: int = 31
    """Octaves of row counts up to here are for every form, those up to ``class_rows`` for one form of each class."""
    class_rows: int = 127
    rare_rows: int = 1023
    """Up to here, one of the octaves above ``class_rows`` is taken now and then."""
    all_widths: bool = True
    """Whether each octave of hidden widths is tried. On a GPU, where a kernel is compiled anew for most of them, the
    few widths that each form and dtype gets have to do."""
    sides: tuple[int, ...] = (2, 3)
    """Sides of leading dimensions where there are several."""
    long_side: tuple[int, int] = (8, 16)
    """Least and most of one side that is longer: heads, or the tokens of a batch."""


GPU_BUDGET = Budget(
    64, 1 << 21, 4, (67, 101, 149, 211, 307, 383), 3, 3, 1 << 14, 1 << 14, 1 << 14, False, (2, 3, 5, 7), (8, 128)
)
CPU_BUDGET = Budget(2, 1 << 17, 1, (11, 13), 2, 2)
FRESH = 32
WIDEST = 1 << 16
"""Of the one row that is as wide as models have it."""
SCALE_CALLS = 3
"""Calls, at the least, that each distribution of scales gets for a class, each in its own part of the range."""
INIT_CALLS = 2
"""The same for each argument of ``__init__`` that has a range."""
APART = 1.25
"""Factor by which a drawn argument of ``__init__`` differs from those that a candidate has seen."""
DRAWS = 100
NARROW = (64, 192)
"""Width of the rows of calls that are about how many rows there are."""
RARELY = 1 / 8
ELSEWHERE = 0.4
"""Share of the calls with several leading dimensions, or with rows apart, that have other than normal values."""


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
        self._inits: dict[tuple[str, str], list[dict[str, Any]]] = {}
        """Arguments of ``__init__`` that all cases of a form have, whatever their dtype."""
        self._standing_in: list[tuple[int, Mapping[str, Any], dict[str, int], dict[str, Any]]] = []

    def lay_out(self, cases: Sequence[Mapping[str, Any]]) -> list[Probe]:
        if not cases:
            return []
        ordered = sorted(cases, key=lambda case: self._elements(case, case["dims"]))
        for case in ordered:
            self._full(case)
        groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for case in ordered:
            groups.setdefault((case["entry"], case["form"], case["dtype"]), []).append(case)
            self._inits.setdefault((case["entry"], case["form"]), []).append(self._init(case))
        for group in groups.values():
            self._sweep(group)
            self._hidden(group)
            self._relations(next((case for case in group if self._has_rows(case)), group[0]))
        self._scales(list(groups.values()))
        self._init_values(list(groups.values()))
        self._magnify(groups)
        self._fresh(ordered)
        self._many_rows(groups)
        # Last, so that of these calls, which are seldom made, at most one is laid out in vain.
        for index, case, dims, more in self._standing_in:
            self._add(case, dims, why=f"{self.probes[index].why}, at the width of a case", unless=index, **more)
        return self.probes

    def _add(
        self,
        case: Mapping[str, Any],
        dims: Mapping[str, int],
        distribution: str,
        why: str,
        other_init: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> int:
        init = {**case["init"], **(other_init or {})}
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
        swept = [name for name in known if name != "normal" and name not in SCALES]
        for number, distribution in enumerate(swept):
            self._reduced(turns[number % len(turns)], distribution)
        if "low_rows" in known:
            # Kernels loop over wide rows and hold narrow ones, and either may begin with another maximum.
            tried = {self._octave(turns[swept.index("low_rows") % len(turns)])}
            for case in turns:
                if self._octave(case) not in tried:
                    tried.add(self._octave(case))
                    self._reduced(case, "low_rows")
        seen = {_init_key(turns[0])}
        for case in turns[1:]:
            if _init_key(case) in seen:
                continue
            seen.add(_init_key(case))
            for distribution in self.random.sample(known, min(len(known), self.budget.further_sweep)):
                self._reduced(case, distribution)

    def _reduced(self, case: Mapping[str, Any], distribution: str, level: float | None = None) -> None:
        more = self.random.randint(0, 2) if distribution in _ANYWHERE else 0
        dims = self._small(case, case["dims"], self.budget.rows + more)
        self._add(case, dims, distribution, f"few rows, {distribution} values", level=level)

    def _scales(self, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Every distribution of scales in every group, at levels spread over its range for each class."""
        for entry in dict.fromkeys(group[0]["entry"] for group in groups):
            mine = [group for group in groups if group[0]["entry"] == entry]
            turns = mine * -(-SCALE_CALLS // len(mine))
            for distribution in [name for name in self.task["distributions"] if name in SCALES]:
                self.random.shuffle(turns)
                for number, group in enumerate(turns):
                    level = (number + self.random.random()) / len(turns)
                    self._reduced(self.random.choice(list(group)), distribution, level)

    def _hidden(self, group: Sequence[Mapping[str, Any]]) -> None:
        ranges = self.task["hidden"]
        case = self.random.choice(list(group))
        leading = self._leading(case)
        widths = [name for name in ranges if name not in leading]
        if leading and leading[0] in ranges:
            low, high, _ = ranges[leading[0]]
            for rows in (1, self.random.randint(3, 8), self.random.choice(self.budget.primes)):
                if low <= rows <= high:
                    small = self._small(case, case["dims"], rows)
                    self._add(case, small | {leading[0]: rows}, "normal", f"{rows} rows, in no case", hidden=True)
        inits = [{}, self._unseen_defaults(group), *self._inits_elsewhere(group)]
        for number, init in enumerate(inits if widths else ()):
            drawn = {name: self._within(ranges[name]) for name in widths}
            dims = self._small(case, case["dims"] | drawn, 3)
            said = ", ".join(f"{name} {value}" for name, value in (drawn | init).items())
            kind = self.random.choice(("normal", "shifted", "large"))
            self._add(case, dims, kind, f"{said}, in no case", init, hidden=True)
            for kind in self._anywhere() if not number else ():
                self._add(case, dims, kind, f"{said}, in no case, {kind} values", hidden=True)

        shown = {name: max((c["dims"].get(name, 0) for c in self.task["cases"]), default=0) for name in widths}
        wide = {name: min(most, WIDEST) for name, most in shown.items() if most > ranges[name][1]}
        if wide and not any(case["dims"].get(name, 0) >= wide[name] for name in wide):
            # The cases at hand are cut down for a CPU: one row as wide as models have it.
            said = ", ".join(f"{name} {value}" for name, value in wide.items())
            dims = self._small(case, case["dims"] | wide, 1)
            self._add(case, dims, "normal", f"one row of {said}, in no case", hidden=True)

    def _init_values(self, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Every argument of ``__init__`` that has a range, at values in no case, spread over it for each class."""
        for entry in dict.fromkeys(group[0]["entry"] for group in groups):
            mine = [group for group in groups if group[0]["entry"] == entry]
            turns = mine * -(-INIT_CALLS // len(mine))
            for name, (lowest, highest) in self.task["init_ranges"].get(entry, {}).items():
                self.random.shuffle(turns)
                for number, group in enumerate(turns):
                    case = self.random.choice(list(group))
                    part = (number / len(turns), (number + 1) / len(turns))
                    value = self._unseen(entry, name, *(lowest * (highest / lowest) ** side for side in part))
                    dims = self._small(case, case["dims"], 2)
                    self._add(case, dims, "tiny", f"{name} {value}, in no case", {name: value}, hidden=True)

    def _unseen(self, entry: str, name: str, lowest: float, highest: float) -> float:
        """A value that can be told from every one that cases, or the default, show. Any, where the range has none."""
        shown = [case["init"][name] for case in self.task["cases"] + self.task["cpu_cases"] if case["entry"] == entry]
        shown += [value for key, value in init_defaults(self.task["entries"][entry]["init"]).items() if key == name]
        for _ in range(DRAWS):
            value = float(f"{lowest * (highest / lowest) ** self.random.random():.3g}")
            if all(not 1 / APART < value / other < APART for other in shown):
                break
        return value

    def _unseen_defaults(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Defaults of ``__init__`` that no case of the group has: they must be right for its form and dtype, too."""
        defaults = init_defaults(self.task["entries"][group[0]["entry"]]["init"])
        return {name: value for name, value in defaults.items() if all(c["init"][name] != value for c in group)}

    def _init(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of ``__init__`` that are no dimensions."""
        given = self.task["init_of"].get(case["entry"], {})
        return {
            name: value
            for name, value in case["init"].items()
            if not (isinstance(given.get(name), str) and given[name] in case["dims"])
        }

    def _inits_elsewhere(self, group: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """One set of arguments of ``__init__`` that cases of the same form have in another dtype, and none here."""
        here = [self._init(case) for case in group]
        defaults = self._unseen_defaults(group)
        others = [
            init
            for init in self._inits[group[0]["entry"], group[0]["form"]]
            if init not in here and not (defaults and defaults.items() <= init.items())
        ]
        return [self.random.choice(others)] if others else []

    def _usable(self, names: Iterable[str]) -> list[str]:
        """Those of the names that the task has and whose values are right for any width.

        Not the vastest where only differences count: in wide rows of 16 bits several share the largest value, and a
        kernel may add the logarithm of a sum to it, which vanishes there.
        """
        vastest = {"huge", "vast"} if "low_rows" in self.task["distributions"] else set()
        known = set(self.task["distributions"]) & DISTRIBUTIONS.keys()
        return [name for name in names if name in known - vastest]

    def _anywhere(self) -> list[str]:
        """Values to be tried at a width of no case: those that kernels treat on their own, and a scale."""
        scales = self._usable(SCALES)
        return self._usable(_ANYWHERE) + ([self.random.choice(scales)] if scales else [])

    def _any(self, share: float) -> str:
        """Normal values, or, with a chance of ``share``, others of the task's, each second time of ``_ANYWHERE``."""
        if self.random.random() >= share:
            return "normal"
        names = _ANYWHERE if self.random.random() < 0.5 else self.task["distributions"]
        return self.random.choice(self._usable(names) or ["normal"])

    def _relations(self, case: Mapping[str, Any]) -> None:
        dims = self._small(case, case["dims"], max(2, min(self.budget.rows, 8)))
        first = self._add(case, dims, "normal", "first of several related calls")
        # Right behind the first, so that whoever remembers one call by a few of its elements takes it for that one.
        self._add(case, dims, "normal", f"{SPARSE} elements changed at the same address", relation="sparse",
                  base=first, placement="same")  # fmt: skip
        several = len(self._arguments(case)) > 1
        # Of several arguments the first drowns the others here, and is drowned by them below.
        kind = "later_smaller" if several else "normal"
        self._add(case, dims, kind, "new values at the same address", relation="new_values", base=first,
                  placement="same")  # fmt: skip
        self._add(case, dims, "normal", "the same values at another address", relation="same_values", base=first)
        if several:
            self._add(case, dims, "later_larger", "the same first argument with a second one that is much larger",
                      relation="other_argument", base=first, placement="same")  # fmt: skip
        leading = self._leading(case)
        if leading and dims[leading[0]] > 1:
            self._add(case, dims | dict.fromkeys(leading, 1), "normal", "the first row of an earlier call, alone",
                      relation="row", base=first)  # fmt: skip
        if leading:
            apart: tuple[Layout, ...] = ("near", "far", "distant")
            for layout in apart:
                kind = self._any(ELSEWHERE)
                said = f"few rows{split_rows.SAID[layout]}, {kind} values"
                self._add(case, dims, kind, said, layout=layout, may_raise=True)
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
            kinds = ("normal", "large", "tiny", "nan", "huge")
            for distribution in [name for name in kinds if name in self.task["distributions"]]:
                case = self.random.choice(list(group))
                dims = self._small(case, case["dims"], max(2, self.budget.rows // 4))
                why = f"in float32, {distribution} values: shows what rounding to {dtype} hides"
                self._add(case, dims, distribution, why, dtype="float32", may_raise=True)

    def _fresh(self, cases: Sequence[Mapping[str, Any]]) -> None:
        small = [(case, self._small(case, case["dims"], self.budget.fresh_rows)) for case in cases]
        case, dims = min(small, key=lambda one: self._elements(*one))
        scales = [name for name in self.task["distributions"] if name in SCALES]
        for number in range(FRESH):
            kind, level = "normal", None
            if scales and number % 2:
                place, name = divmod(number // 2, len(scales))
                kind, level = scales[name], (place + self.random.random()) / -(-FRESH // 2 // len(scales))
            why = f"fresh call {number + 1} of {FRESH} of one shape, {kind} values"
            self._add(case, dims, kind, why, level=level)

    def _many_rows(self, groups: Mapping[tuple[str, str, str], Sequence[Mapping[str, Any]]]) -> None:
        """Row counts between powers of two for each form, several leading dimensions for each form and dtype."""
        forms: dict[str, dict[str, list[Sequence[Mapping[str, Any]]]]] = {}
        for (entry, form, _), group in groups.items():
            forms.setdefault(entry, {}).setdefault(form, []).append(group)
            self._leading_dimensions(group)
        for same in forms.values():
            self._row_counts(list(same.values()))
            if self.budget.all_widths:
                self._widths([group for groups in same.values() for group in groups])

    def _row_counts(self, forms: Sequence[Sequence[Sequence[Mapping[str, Any]]]]) -> None:
        """For the forms of one class, each given as its groups of one dtype."""
        name = next(iter(self._leading(forms[0][0][0])), "")
        if name not in self.task["hidden"]:
            return
        low, high, _ = self.task["hidden"][name]
        narrow = [[self._narrow(group) for group in groups] for groups in forms]
        spread = [kind for kind in ("normal", "normal", "uneven") if kind in self.task["distributions"]]
        octaves = row_counts.octaves(low, high)
        rare = [octave for octave in octaves if self.budget.class_rows < octave[1] <= self.budget.rare_rows]
        usual = [octave for octave in octaves if octave[1] <= self.budget.class_rows]
        turns = [
            (octave, choices)
            for octave in usual + ([self.random.choice(rare)] if rare and self.random.random() < RARELY else [])
            for choices in (narrow if octave[1] <= self.budget.form_rows else [self.random.choice(narrow)])
        ]
        padded = self.random.sample(range(len(turns)), -(-len(turns) // 4))
        for number, (octave, choices) in enumerate(turns):
            rows = row_counts.draw(octave, self.random, padded=number in padded)
            case, dims = self.random.choice(choices)
            self._off_case(case, dims, rows, self.random.choice(spread), f"{rows} rows, in no case")

    def _widths(self, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """For the forms and dtypes of one class: two rows of a width between each two powers of two."""
        leading = self._leading(groups[0][0])
        for name in [name for name in self.task["hidden"] if name not in leading]:
            low, high, step = self.task["hidden"][name]
            for first, last in row_counts.octaves(low, high):
                count = (last - low) // step - -(-(first - low) // step) + 1
                if count < 1:
                    continue
                # More often a small one, as row counts are.
                width = low + step * (-(-(first - low) // step) + int(self.random.random() ** 2 * count))
                case = self.random.choice(list(self.random.choice(list(groups))))
                dims = self._small(case, case["dims"] | {name: width}, 2)
                self._add(case, dims, "normal", f"{name} {width}, in no case", hidden=True)

    def _leading_dimensions(self, group: Sequence[Mapping[str, Any]]) -> None:
        form = self.task["entries"][group[0]["entry"]]["forms"][group[0]["form"]]
        wanted = form["leading_init"].items()
        able = [case for case in group if all(case["init"].get(name) == value for name, value in wanted)]
        if not form["leading"] or not able:
            return
        case, dims = self._narrow(able)
        for sides, layout in split_rows.tries(self.budget.sides, self.budget.long_side, self.random):
            said = f"{form['leading']} as {len(sides)} dimensions, {' x '.join(map(str, sides))}"
            kind = self._any(ELSEWHERE)
            said += f"{split_rows.SAID[layout]}, {kind} values"
            more: dict[str, Any] = {"leading": sides, "layout": layout, "may_raise": layout != ""}
            self._off_case(case, dims, prod(sides), kind, said, **more)

    def _narrow(self, group: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], dict[str, int]]:
        """A case of the group and its dimensions, but for short rows: of a hidden width, or of the narrowest case."""
        case = self.random.choice(list(group))
        leading = self._leading(case)
        widths = [name for name in self.task["hidden"] if name not in leading and name in case["dims"]]
        if not widths:
            case = min(group, key=lambda one: self._elements(one, one["dims"] | dict.fromkeys(leading, 1)))
            return case, dict(case["dims"])
        dims = dict(case["dims"])
        for name in widths:
            low, high, step = self.task["hidden"][name]
            first = low + max(0, -(-(NARROW[0] - low) // step)) * step
            dims[name] = self._within((first, max(first, min(high, NARROW[1])), step)) if first <= high else low
        return case, dims

    def _off_case(
        self, case: Mapping[str, Any], dims: Mapping[str, int], rows: int, distribution: str, why: str, **others: Any
    ) -> None:
        """A call with short rows, and one at the case's own width for a candidate that supports no other."""
        names = self._leading(case)
        wanted = dict.fromkeys(names, 1) | {names[0]: rows}
        more: dict[str, Any] = {"hidden": True, "distribution": distribution, **others}
        index = self._add(case, dict(dims) | wanted, why=why, **more)
        wide = dict(case["dims"]) | wanted
        if wide != self.probes[index].dims and self._elements(case, wide) <= 4 * self.budget.elements:
            self._standing_in.append((index, case, wide, more))

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

    def _octave(self, case: Mapping[str, Any]) -> int:
        """Of how long a row of a case is."""
        return self._elements(case, case["dims"] | dict.fromkeys(self._leading(case), 1)).bit_length()

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
