"""What a task must hold to be usable, beyond the types of its fields: every reference inside it leads somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fk_core import formulas
from fk_core.child.baselines import base as baselines
from fk_core.records.task import CaseSpec, Entry, Form, TaskSpec
from fk_core.task_text import broken

ITEM_SIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
MANDATORY = frozenset({"normal", "large", "tiny", "constant", "cancellation", "outliers"})
DISTRIBUTIONS = MANDATORY | {
    "heavy", "shifted", "integers", "zeros", "huge", "negative_zeros", "denormals", "negative", "repeated_row",
    "low_rows", "masked", "nan", "faint", "uneven", "vast",
}  # fmt: skip
DRAWS = frozenset({"normal", "norm_weight", "linear_weight"})
MAX_CPU_ROWS = 64

Problem = tuple[str, str]
"""Key and what is wrong there."""


def check(spec: TaskSpec) -> None:
    """Raises ``TaskBroken`` with the first rule that the task breaks."""
    for key, what in _problems(spec):
        raise broken(Path(spec.path), key, what)


def _problems(spec: TaskSpec) -> Iterator[Problem]:
    path = Path(spec.path)
    if spec.name != path.stem:
        yield "name", f"{spec.name!r} is not the file's name, {path.stem!r}"
    if f"L{spec.level}" != path.parent.name:
        yield "level", f"level {spec.level} stands in the folder {path.parent.name!r}"
    for key in ("summary", "source"):
        if not getattr(spec, key).strip():
            yield key, "is empty"
    yield from _lists(spec)
    for name, entry in spec.entries.items():
        for form_name, form in entry.forms.items():
            yield from _form(spec, entry, f"entries.{name}.forms.{form_name}", form)
        yield from _entry(spec, name, entry)
    for key, cases in (("cases", spec.cases), ("cpu_cases", spec.cpu_cases)):
        if not cases:
            yield key, "is empty"
        seen: dict[str, int] = {}
        for i, case in enumerate(cases):
            yield from _case(spec, f"{key}[{i}]", case)
            if case.id in seen:
                yield f"{key}[{i}]", f"has the same id as {key}[{seen[case.id]}]: {case.id}; give it another workload"
            seen[case.id] = i
    for name, entry in spec.entries.items():
        for form_name, form in entry.forms.items():
            yield from _leading(spec, name, f"entries.{name}.forms.{form_name}", form)
    for i, case in enumerate(spec.cpu_cases):
        rows = _rows(spec, case)
        if rows > MAX_CPU_ROWS:
            yield f"cpu_cases[{i}]", f"has {rows} rows; at most {MAX_CPU_ROWS} keep an interpreted candidate quick"


def _lists(spec: TaskSpec) -> Iterator[Problem]:
    if unknown := sorted(set(spec.distributions) - DISTRIBUTIONS):
        yield "distributions", f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(DISTRIBUTIONS))}"
    if missing := sorted(MANDATORY - set(spec.distributions)):
        yield "distributions", f"lacks the mandatory {', '.join(missing)}"
    for key in ("distributions", "baselines", "dtypes"):
        values = getattr(spec, key)
        if not values or len(set(values)) != len(values):
            yield key, f"must list each name once and at least one; found {values}"
    if unknown := sorted(set(spec.baselines) - set(baselines.providers())):
        yield "baselines", f"unknown: {', '.join(unknown)}; there are {', '.join(baselines.providers())}"
    if "torch_eager" not in spec.baselines:
        yield "baselines", "lacks torch_eager, the baseline on a machine without a GPU"
    dims = _dimension_names(spec)
    for name, limits in spec.hidden.items():
        low, high, step = limits
        if name not in dims:
            yield f"hidden.{name}", f"is no dimension; there are {', '.join(sorted(dims))}"
        if not (0 < low <= high and step > 0):
            yield f"hidden.{name}", f"expected 0 < lowest <= highest and a positive step, found {limits}"
    if not (0 < spec.tolerance.u <= 2.0**-8 and 0 < spec.tolerance.limit <= 8):
        yield "tolerance", f"u {spec.tolerance.u} or limit {spec.tolerance.limit} would accept anything"


def _entry(spec: TaskSpec, name: str, entry: Entry) -> Iterator[Problem]:
    if not entry.forms:
        yield f"entries.{name}.forms", "is empty"
    if name not in spec.init_of:
        yield "init_of", f"lacks {name}"
    sources = spec.init_of.get(name, {})
    known = {parameter.name for parameter in entry.init}
    if unknown := sorted(set(sources) - known):
        yield f"init_of.{name}", f"{', '.join(unknown)}: no such argument of __init__"
    for argument, (low, high) in spec.init_ranges.get(name, {}).items():
        if argument not in known or isinstance(sources.get(argument), str):
            yield f"init_ranges.{name}.{argument}", "is no argument of __init__, or follows a dimension"
        if not 0 < low <= high:
            yield f"init_ranges.{name}.{argument}", f"expected 0 < lowest <= highest, found {low} and {high}"
    for state_name, tensor in entry.state.items():
        key = f"entries.{name}.state.{state_name}"
        if tensor.draw not in DRAWS:
            yield key, f"draw {tensor.draw!r} is none of {', '.join(sorted(DRAWS))}"
        for side in tensor.shape:
            yield from _formula(f"{key}.shape", side, frozenset(str(value) for value in sources.values()))
    if not any(case.entry == name for case in spec.cases):
        yield "cases", f"none constructs {name}"


def _form(spec: TaskSpec, entry: Entry, key: str, form: Form) -> Iterator[Problem]:
    parameters = [parameter.name for parameter in entry.forward]
    if not form.arguments:
        yield f"{key}.arguments", "is empty"
    for argument in form.arguments:
        if argument not in spec.tensors:
            yield f"{key}.arguments", f"{argument!r} is not in tensors"
    if form.arguments != parameters[: len(form.arguments)]:
        yield f"{key}.arguments", f"{form.arguments} are not the first parameters of forward, {parameters}"
    for parameter in entry.forward[len(form.arguments) :]:
        if not parameter.has_default:
            yield f"{key}.arguments", f"leaves out {parameter.name}, which has no default"
    for argument in form.mutates:
        if argument not in form.arguments:
            yield f"{key}.mutates", f"{argument!r} is no argument of the form"
    if not form.outputs and "must" not in form.mutates.values():
        yield f"{key}.outputs", "is empty and nothing must change: there would be nothing to judge"
    names = _dimension_names(spec)
    for output_name, output in form.outputs.items():
        for alias in output.aliases:
            if alias not in form.mutates:
                yield f"{key}.outputs.{output_name}.aliases", f"{alias!r} may not be changed, so nothing may share it"
        for side in output.shape:
            yield from _formula(f"{key}.outputs.{output_name}.shape", side, names)
    for which in ("bytes", "flops"):
        yield from _formula(f"{key}.{which}", getattr(form, which), names | {"itemsize"})


def _leading(spec: TaskSpec, entry: str, key: str, form: Form) -> Iterator[Problem]:
    shapes = {a: spec.tensors[a].shape for a in form.arguments if a in spec.tensors}
    shapes |= {name: output.shape for name, output in form.outputs.items()}
    for word, side in (("leading", form.leading), ("rows", form.rows)):
        if not side:
            continue
        for name, shape in shapes.items():
            if shape[:1] != [side] or any(side in formulas.names(other) for other in shape[1:]):
                yield f"{key}.{word}", f"{side!r} must be the first side of {name} and in no other: {shape}"
        for name, state in spec.entries[entry].state.items():
            if any(side in formulas.names(other) for other in state.shape):
                yield f"{key}.{word}", f"{side!r} is a side of the state {name}, so it is no number of rows"
        if side in spec.init_of.get(entry, {}).values():
            yield f"{key}.{word}", f"{side!r} decides an argument of __init__, so it is no number of rows"
    if unknown := sorted(set(form.leading_init) - {parameter.name for parameter in spec.entries[entry].init}):
        yield f"{key}.leading_init", f"{', '.join(unknown)}: no such argument of __init__"


def _formula(key: str, text: str, known: frozenset[str]) -> Iterator[Problem]:
    try:
        unknown = formulas.names(text) - known
    except formulas.FormulaError as error:
        yield key, str(error)
        return
    if unknown:
        yield key, f"{text!r} names {', '.join(sorted(unknown))}; known here: {', '.join(sorted(known)) or 'nothing'}"


def _case(spec: TaskSpec, key: str, case: CaseSpec) -> Iterator[Problem]:
    form = spec.entries[case.entry].forms[case.form]
    if case.dtype not in spec.dtypes:
        yield f"{key}.dtype", f"{case.dtype} is not among dtypes {spec.dtypes}"
    for text in (case.model, case.workload):
        if not text or set(text) & set("/,*?[] "):
            yield key, f"{text!r} can't be part of an id: no /, comma, blank, *, ? or brackets"
    if case.tp < 1 or (case.calls is not None and case.calls < 1):
        yield key, f"tp {case.tp} and calls {case.calls} must be at least 1"
    needed = _names_of(spec, form)
    if set(case.dims) != needed:
        yield f"{key}.dims", f"gives {', '.join(sorted(case.dims))}; the form needs {', '.join(sorted(needed))}"
        return
    for name, size in case.dims.items():
        if size < 1:
            yield f"{key}.dims.{name}", f"is {size}"
    values = {**case.dims, "itemsize": ITEM_SIZE[case.dtype]}
    try:
        sizes = [
            formulas.evaluate(side, case.dims) for argument in form.arguments for side in spec.tensors[argument].shape
        ]
        sizes += [formulas.evaluate(side, case.dims) for output in form.outputs.values() for side in output.shape]
        costs = [formulas.evaluate(form.bytes, values), formulas.evaluate(form.flops, values)]
    except formulas.FormulaError as error:
        yield key, str(error)
        return
    if min(sizes) < 1 or costs[0] < 1 or costs[1] < 0:
        yield key, f"has a side, a byte or a FLOP count below what is possible: {sizes}, {costs}"
    for argument, source in spec.init_of.get(case.entry, {}).items():
        wanted = case.dims.get(source, source) if isinstance(source, str) else source
        if case.init.get(argument) != wanted:
            yield f"{key}.init.{argument}", f"is {case.init.get(argument)!r}, but init_of says {source!r} = {wanted!r}"


def _names_of(spec: TaskSpec, form: Form) -> set[str]:
    shapes = [spec.tensors[argument].shape for argument in form.arguments if argument in spec.tensors]
    shapes += [output.shape for output in form.outputs.values()]
    found: set[str] = set()
    for side in (side for shape in shapes for side in shape):
        try:
            found |= formulas.names(side)
        except formulas.FormulaError:
            continue  # reported where the shape stands
    return found


def _dimension_names(spec: TaskSpec) -> frozenset[str]:
    return frozenset(name for case in [*spec.cases, *spec.cpu_cases] for name in case.dims)


def _rows(spec: TaskSpec, case: CaseSpec) -> int:
    """Product of all sides of the first tensor but the last."""
    form = spec.entries[case.entry].forms[case.form]
    rows = 1
    for side in spec.tensors[form.arguments[0]].shape[:-1]:
        rows *= formulas.evaluate(side, case.dims)
    return rows
