"""A task file as text -> ``TaskSpec``. The literal ``TASK`` is read, the rest is looked at, nothing is run.

Whatever is wrong raises ``TaskBroken`` with the file, the key and what was expected there.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fk_core import formulas
from fk_core.errors import TaskBroken
from fk_core.records.task import SHORT_DTYPE, CaseSpec, Entry, Parameter, TaskSpec

REQUIRED = frozenset(
    [
        "name",
        "level",
        "summary",
        "source",
        "entries",
        "tensors",
        "dtypes",
        "init_of",
        "hidden",
        "distributions",
        "baselines",
        "cases",
        "cpu_cases",
    ]
)
OPTIONAL = frozenset({"tolerance", "gate_repeatable", "init_ranges"})
CASE_REQUIRED = frozenset({"model", "workload", "form", "dtype", "dims", "init"})
CASE_OPTIONAL = frozenset({"entry", "tp", "calls"})
FUNCTIONS = ("oracle", "make_inputs")


def parse(path: Path) -> TaskSpec:
    """The task of one file. Raises ``TaskBroken``."""
    try:
        raw = path.read_bytes()
        tree = ast.parse(raw, filename=str(path))
    except OSError as error:
        raise broken(path, "", f"can't be read: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise broken(path, "", f"is no Python: {error}") from None
    task = _literal(path, tree)
    _check_code(path, tree)
    _check_keys(path, "TASK", task, REQUIRED, OPTIONAL)
    entries = _entries(path, task["entries"])
    fields = {**task, "entries": entries, "path": str(path), "sha256": hashlib.sha256(raw).hexdigest()}
    for key in ("cases", "cpu_cases"):
        if not isinstance(task[key], list):
            raise broken(path, key, f"expected a list, found {type(task[key]).__name__}")
        fields[key] = [_case(path, f"{key}[{i}]", case, task, entries) for i, case in enumerate(task[key])]
    try:
        return TaskSpec(**fields)
    except ValidationError as error:
        raise _from_pydantic(path, error) from None


def broken(path: Path, key: str, what: str) -> TaskBroken:
    where = f"{path}: {key}: " if key else f"{path}: "
    return TaskBroken(where + what, hint="Mend the task file; nothing can be judged with it as it is")


def parse_signature(text: str) -> list[Parameter]:
    """Parameters of ``"x: Tensor, residual: Tensor | None = None"``. Raises ``ValueError``."""
    try:
        body = ast.parse(f"def _({text}): ...").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no list of parameters: {error.msg}") from None
    function = body[0]
    if len(body) != 1 or not isinstance(function, ast.FunctionDef) or len(function.body) != 1:
        raise ValueError(f"{text!r} is no list of parameters")
    given = function.args
    if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs:
        raise ValueError(f"{text!r}: only plain parameters, no *, / or **")
    defaults: list[ast.expr | None] = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    parameters = []
    for argument, default in zip(given.args, defaults, strict=True):
        if argument.annotation is None:
            raise ValueError(f"{text!r}: {argument.arg} has no type")
        try:
            value = None if default is None else ast.literal_eval(default)
        except ValueError:
            raise ValueError(f"{text!r}: the default of {argument.arg} is no literal") from None
        parameters.append(
            Parameter(
                name=argument.arg,
                annotation=ast.unparse(argument.annotation),
                has_default=default is not None,
                default=value,
            )
        )
    return parameters


def case_id(task_name: str, entries: Mapping[str, Entry], tensors: Mapping[str, Any], case: Mapping[str, Any]) -> str:
    """``op/[Class/]model/tpN/workload/dtype/<shape of the first tensor>[suffix]``."""
    form = entries[case["entry"]].forms[case["form"]]
    shape = [formulas.evaluate(side, case["dims"]) for side in tensors[form.arguments[0]]["shape"]]
    parts = [task_name]
    if len(entries) > 1:
        parts.append(case["entry"])
    parts += [case["model"], f"tp{case['tp']}", case["workload"], SHORT_DTYPE[case["dtype"]]]
    return "/".join([*parts, "x".join(map(str, shape)) + form.suffix])


def _literal(path: Path, tree: ast.Module) -> dict[str, Any]:
    found = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["TASK"]
    ]
    if len(found) != 1:
        raise broken(path, "TASK", f"expected one assignment TASK = {{...}} at the top level, found {len(found)}")
    try:
        task = ast.literal_eval(found[0])
    except ValueError as error:
        # Tolerances are written 2.0**-24, the one arithmetic that a literal may hold here.
        task = _literal_with_powers(path, found[0], error)
    if not isinstance(task, dict) or not all(isinstance(key, str) for key in task):
        raise broken(path, "TASK", "expected a dictionary with text keys")
    return task


def _literal_with_powers(path: Path, node: ast.expr, error: ValueError) -> Any:
    class Powers(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            try:
                base, exponent = ast.literal_eval(node.left), ast.literal_eval(node.right)
            except ValueError:
                return node
            if isinstance(node.op, ast.Pow) and base == 2.0 and isinstance(exponent, int) and abs(exponent) < 128:
                return ast.Constant(2.0**exponent)
            return node

    try:
        return ast.literal_eval(Powers().visit(node))
    except ValueError:
        raise broken(path, "TASK", f"is no literal: {error}") from None


def _check_code(path: Path, tree: ast.Module) -> None:
    """Besides its docstring and TASK a task file imports torch and defines functions: loading it does nothing else."""
    defined = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            defined.add(statement.name)
        elif not isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign) and not (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            what = f"holds the statement {type(statement).__name__}; only imports, constants and functions may"
            raise broken(path, f"line {statement.lineno}", what)
    for name in FUNCTIONS:
        if name not in defined:
            raise broken(path, name, f"expected a function {name}(...) at the top level")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for module in [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "."]:
            if module.split(".")[0] not in ("torch", "__future__"):
                raise broken(path, f"line {node.lineno}", f"imports {module!r}; a task file imports torch only")


def _check_keys(
    path: Path, key: str, found: Any, required: Iterable[str], optional: Iterable[str] = frozenset()
) -> None:
    if not isinstance(found, dict):
        raise broken(path, key, f"expected a dictionary, found {type(found).__name__}")
    if missing := sorted(set(required) - set(found)):
        raise broken(path, key, f"lacks {', '.join(missing)}")
    if unknown := sorted(map(str, set(found) - set(required) - set(optional))):
        raise broken(
            path, key, f"has unknown keys {', '.join(unknown)}; known: {', '.join(sorted({*required, *optional}))}"
        )


def _entries(path: Path, found: Any) -> dict[str, Entry]:
    if not isinstance(found, dict) or not found:
        raise broken(path, "entries", "expected at least one class")
    entries = {}
    for name, entry in found.items():
        key = f"entries.{name}"
        _check_keys(path, key, entry, {"init", "forward", "forms"}, {"state", "contract"})
        fields = dict(entry)
        for which in ("init", "forward"):
            try:
                fields[which] = parse_signature(entry[which])
            except ValueError as error:
                raise broken(path, f"{key}.{which}", str(error)) from None
        try:
            entries[name] = Entry(**fields)
        except ValidationError as error:
            raise _from_pydantic(path, error, key) from None
    return entries


def _case(path: Path, key: str, found: Any, task: Mapping[str, Any], entries: Mapping[str, Entry]) -> CaseSpec:
    _check_keys(path, key, found, CASE_REQUIRED, CASE_OPTIONAL)
    case = {"tp": 1, "calls": None, **found}
    if "entry" not in case:
        if len(entries) > 1:
            raise broken(path, key, f"lacks entry; there are {', '.join(entries)}")
        case["entry"] = next(iter(entries))
    entry = entries.get(case["entry"])
    if entry is None:
        raise broken(path, f"{key}.entry", f"no class {case['entry']!r}; there are {', '.join(entries)}")
    if case["form"] not in entry.forms:
        raise broken(path, f"{key}.form", f"no form {case['form']!r}; there are {', '.join(entry.forms)}")
    if case["dtype"] not in SHORT_DTYPE:
        raise broken(path, f"{key}.dtype", f"{case['dtype']!r} is none of {', '.join(SHORT_DTYPE)}")
    case["init"] = complete_init(path, f"{key}.init", entry, case["init"], case["dims"])
    try:
        case["id"] = case_id(task["name"], entries, task["tensors"], case)
        return CaseSpec(**case)
    except ValidationError as error:
        raise _from_pydantic(path, error, key) from None
    except formulas.FormulaError as error:
        raise broken(path, key, str(error)) from None
    except (KeyError, TypeError) as error:
        raise broken(path, key, f"can't be given an id: {type(error).__name__} {error}") from None


def complete_init(
    path: Path, key: str, entry: Entry, found: Mapping[str, Any], dims: Mapping[str, int]
) -> dict[str, Any]:
    """Every argument of ``__init__``: names of dimensions replaced by their size, defaults filled in, in order."""
    if not isinstance(found, dict) or not isinstance(dims, dict):
        raise broken(path, key, "expected dictionaries for init and dims")
    known = [parameter.name for parameter in entry.init]
    if unknown := sorted(set(found) - set(known)):
        raise broken(
            path, key, f"{', '.join(unknown)}: no such argument of __init__; there are {', '.join(known) or 'none'}"
        )
    complete: dict[str, Any] = {}
    for parameter in entry.init:
        if parameter.name in found:
            value = found[parameter.name]
            if isinstance(value, str):
                if value not in dims:
                    raise broken(path, f"{key}.{parameter.name}", f"{value!r} is no dimension of the case")
                value = dims[value]
            complete[parameter.name] = value
        elif parameter.has_default:
            complete[parameter.name] = parameter.default
        else:
            raise broken(path, key, f"lacks {parameter.name}, which has no default")
    return complete


def _from_pydantic(path: Path, error: ValidationError, key: str = "") -> TaskBroken:
    first = error.errors(include_url=False)[0]
    where = ".".join([*([key] if key else []), *(str(part) for part in first["loc"])])
    found = repr(first.get("input"))
    return broken(path, where, f"{first['msg']}, found {found[:80]}")
