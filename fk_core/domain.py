"""The domain that a candidate declares for itself: a literal ``SUPPORTS`` at the top of its file.

    SUPPORTS = {"hidden": [4096], "tokens": (1, 16384), "dtype": ["bfloat16"]}

Dimensions of the model (widths, and what ``__init__`` gets) may be a list of exact values or a range; dimensions that
vary at run time (how many rows) must be a range. Outside its domain an engine would run the baseline instead, so such
cases count 1.00 and are not the candidate's. Undeclared means everything. A ``SUPPORTS`` that the text binds in another
way, binds twice or changes outside functions is refused, so that what is read is what its author meant; what functions
do to the dict, and what they reach by other names, is not looked at and changes nothing: only the literal counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fk_core.formulas import names
from fk_core.records.task import CaseSpec, TaskSpec

LARGEST = 2**62
_NAME = "SUPPORTS"
_CHANGERS = frozenset({"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__", "__ior__"})


class BadDomain(ValueError):
    """``SUPPORTS`` is there and can't be used; the message says why. ``captured``: it names sizes that models ask for,
    which are not those of a CPU's cases."""

    def __init__(self, message: str, *, captured: bool = False) -> None:
        super().__init__(message)
        self.captured = captured


@dataclass(frozen=True)
class Domain:
    exact: dict[str, frozenset[int]]
    ranges: dict[str, tuple[int, int]]
    dtypes: frozenset[str] | None

    def covers(self, dims: Mapping[str, int], dtype: str) -> bool:
        if self.dtypes is not None and dtype not in self.dtypes:
            return False
        if any(name in dims and dims[name] not in values for name, values in self.exact.items()):
            return False
        return all(low <= dims[name] <= high for name, (low, high) in self.ranges.items() if name in dims)


EVERYTHING = Domain({}, {}, None)


def declared(source: str, spec: TaskSpec) -> Domain:
    """What the source declares. Raises ``BadDomain``; sources that do not parse declare everything."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return EVERYTHING
    found: ast.expr | None = None
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _NAME in _targets(node) and node.value is not None:
            found = node.value
    for line, how in _otherwise(tree):
        raise BadDomain(f"SUPPORTS (line {line}) {how}. {_instead(spec)}")
    if found is None:
        return EVERYTHING
    try:
        value = ast.literal_eval(found)
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise BadDomain(f"SUPPORTS (line {found.lineno}) must be a literal dict. {_instead(spec)}") from error
    if not isinstance(value, dict):
        said = f"SUPPORTS (line {found.lineno}) must be a dict, it is a {type(value).__name__}"
        raise BadDomain(f"{said}. {_instead(spec)}")
    return _read(value, spec)


def unknown_sizes(spec: TaskSpec, domain: Domain) -> list[str]:
    """What to tell of exact sizes, and of ranges of sizes, that no case of the task has."""
    told = []
    sizes: dict[str, set[int]] = {}
    for case in (*spec.cases, *spec.cpu_cases):
        for name, size in case.dims.items():
            sizes.setdefault(name, set()).add(size)
    for name, (low, high) in domain.ranges.items():
        there = sizes[name]
        if not any(low <= size <= high for size in there):
            said = ", ".join(str(size) for size in sorted(there))
            told.append(f"SUPPORTS[{name!r}] is ({low}, {high}), in which no case lies; cases have {said}")
    for name, values in domain.exact.items():
        there = sizes[name]
        if more := sorted(values - there):
            listed = ", ".join(str(size) for size in more[:8]) + (", ..." if len(more) > 8 else "")
            said = ", ".join(str(size) for size in sorted(there))
            told.append(f"SUPPORTS[{name!r}] lists {listed}, which no case has, so it was not tried; cases have {said}")
    return told


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _instead(spec: TaskSpec) -> str:
    """What to write: for the first case's widths and dtype, and all of their numbers of rows."""
    case, rows = spec.cases[0], runtime_dims(spec)
    exact = {name: frozenset({size}) for name, size in case.dims.items() if name not in rows}
    example: dict[str, object] = {name: list(sizes) for name, sizes in exact.items()}
    example |= asked_for(spec, Domain(exact, {}, frozenset({case.dtype}))) | {"dtype": [case.dtype]}
    return f"Write it once, at the top level and as a literal, for example SUPPORTS = {example}"


def _otherwise(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where and how a module binds or changes ``SUPPORTS`` other than by one plain assignment at the top level."""
    plain: set[int] = set()
    assigned = 0
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            plain |= {id(target) for target in targets if isinstance(target, ast.Name)}
            if _NAME in _targets(statement):
                if assigned:
                    yield statement.lineno, f"is assigned in line {assigned} already"
                assigned = assigned or statement.lineno
    todo: list[tuple[ast.AST, str]] = [(node, "") for node in reversed(tree.body)]
    while todo:
        node, inside = todo.pop()
        how = _binds(node, inside) if id(node) not in plain else ""
        if how:
            yield getattr(node, "lineno", 0), how
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inside = "function"
        elif isinstance(node, ast.ClassDef):
            inside = inside or "class"
        elif isinstance(node, ast.comprehension):
            # Its names are its own.
            plain |= {id(one) for one in ast.walk(node.target) if isinstance(one, ast.Name)}
        todo += [(child, inside) for child in reversed(list(ast.iter_child_nodes(node)))]


def _binds(node: ast.AST, inside: str) -> str:
    """How a node binds or changes the module's ``SUPPORTS``; ``inside``: of what it is a part."""
    if isinstance(node, ast.Global) and _NAME in node.names:
        return "is bound by a function"
    if inside == "function":
        return ""  # a local name
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == _NAME and not inside:
        return "is a class" if isinstance(node, ast.ClassDef) else "is a function"
    if isinstance(node, (ast.Import, ast.ImportFrom)) and _NAME in [_bound(name) for name in node.names]:
        return "is imported"
    if isinstance(node, ast.Name) and node.id == _NAME and isinstance(node.ctx, ast.Del) and not inside:
        return "is deleted"
    if _stores(node):
        if inside == "class":
            return "stands in a class, where nobody looks for it"
        return "is no plain assignment at the top level of the file"
    if isinstance(node, ast.Subscript) and _is_it(node.value) and not isinstance(node.ctx, ast.Load):
        return "is changed behind its assignment"
    if isinstance(node, ast.Attribute) and _is_it(node.value) and node.attr in _CHANGERS:
        return "is changed behind its assignment"
    return ""


def _bound(name: ast.alias) -> str:
    """The name that an import binds: of ``import a.b`` that is ``a``."""
    return name.asname or name.name.partition(".")[0]


def _stores(node: ast.AST) -> bool:
    """Whether this binds the name, if it stands where the name is the module's."""
    if isinstance(node, ast.Name):
        return node.id == _NAME and not isinstance(node.ctx, ast.Load)
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return node.name == _NAME
    return isinstance(node, ast.MatchMapping) and node.rest == _NAME


def _is_it(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == _NAME


def _read(value: dict[object, object], spec: TaskSpec) -> Domain:
    known = {name for case in (*spec.cases, *spec.cpu_cases) for name in case.dims}
    rows = runtime_dims(spec)
    exact: dict[str, frozenset[int]] = {}
    ranges: dict[str, tuple[int, int]] = {}
    dtypes: frozenset[str] | None = None
    for key, allowed in value.items():
        if key == "dtype":
            if not isinstance(allowed, (list, tuple)) or not all(isinstance(d, str) for d in allowed):
                raise BadDomain("SUPPORTS['dtype'] must be a list of torch dtype names such as 'bfloat16'")
            if not allowed:
                raise BadDomain(
                    f"SUPPORTS['dtype'] is empty; name at least one of {', '.join(spec.dtypes)}, or leave it out"
                )
            dtypes = _dtypes([str(d) for d in allowed], spec)
        elif not isinstance(key, str):
            raise BadDomain(f"SUPPORTS has a key of type {type(key).__name__}; keys are names of dimensions, or dtype")
        elif key not in known:
            dimensions = ", ".join(sorted(known))
            raise BadDomain(
                f"SUPPORTS names {key!r}; the dimensions of {spec.name} are {dimensions}; dtype is a key, too"
            )
        elif isinstance(allowed, tuple) and len(allowed) == 2 and all(_whole(v) for v in allowed):
            ranges[key] = (int(allowed[0]), int(allowed[1]))
            if ranges[key][0] > ranges[key][1]:
                raise BadDomain(f"SUPPORTS[{key!r}] is {ranges[key]}; a range is (lowest, highest)")
        elif isinstance(allowed, list) and allowed and all(_whole(v) for v in allowed):
            if key in rows:
                raise BadDomain(
                    f"SUPPORTS[{key!r}] must be a range such as (1, 16384): how many rows there are varies at run time"
                )
            exact[key] = frozenset(int(v) for v in allowed)
        else:
            raise BadDomain(
                f"SUPPORTS[{key!r}] must be a list of whole numbers, or a range (lowest, highest), from 0 to {LARGEST}"
            )
    model = Domain(exact, {name: r for name, r in ranges.items() if name not in rows}, dtypes)
    for key, (least, most) in asked_for(spec, model).items():
        low, high = ranges.get(key, (least, most))
        if low > least or high < most:
            raise BadDomain(
                f"SUPPORTS[{key!r}] is ({low}, {high}); it has to cover what models ask for, {least} to {most}",
                captured=True,
            )
    return Domain(exact, ranges, dtypes)


def asked_for(spec: TaskSpec, within: Domain = EVERYTHING) -> dict[str, tuple[int, int]]:
    """The least and the most that models ask for, of each dimension that varies at run time.

    ``within``: what is declared of the others. Whoever supports a width has to take all of its numbers of rows.
    """
    found: dict[str, tuple[int, int]] = {}
    for key in sorted(runtime_dims(spec)):
        captured = [c.dims[key] for c in spec.cases if key in c.dims and within.covers(c.dims, c.dtype)]
        if captured:
            found[key] = min(captured), max(captured)
    return found


_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""As ids of cases say it."""


def _dtypes(named: list[str], spec: TaskSpec) -> frozenset[str]:
    known = set(spec.dtypes)
    dtypes = frozenset(_SHORT.get(d, d.removeprefix("torch.")) for d in named)
    if dtypes - known:
        raise BadDomain(
            f"SUPPORTS['dtype'] names {', '.join(sorted(dtypes - known))}; {spec.name} has {', '.join(sorted(known))}"
        )
    return dtypes


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def runtime_dims(spec: TaskSpec) -> set[str]:
    """Dimensions that only say how many rows there are: in no last axis, and no argument of ``__init__``."""
    inner = {v for entry in spec.init_of.values() for v in entry.values() if isinstance(v, str)}
    outer: set[str] = set()
    for tensor in spec.tensors.values():
        inner |= names(tensor.shape[-1])
        outer |= {name for side in tensor.shape[:-1] for name in names(side)}
    return outer - inner


def share(cases: list[CaseSpec], domain: Domain) -> float:
    """The part of the models' calls that lie in the domain; cases whose calls are unknown count once."""
    total = sum(case.calls or 1 for case in cases)
    inside = sum(case.calls or 1 for case in cases if domain.covers(case.dims, case.dtype))
    return inside / total if total else 1.0
