"""What can be said of a candidate file by reading it: is it text, is it Python, do its classes take the cases' calls.

Nothing is imported or run, and no word is banned: what a file does is judged where it runs. A class whose signature
can't be known from the text (decorated, inherited, assigned) is left to the process that loads it.
"""

from __future__ import annotations

import ast
import codecs
import inspect
import io
import signal
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fk_core.catalog import passed_init
from fk_core.records.report import Outcome
from fk_core.records.task import CaseSpec, TaskSpec
from fk_core.settings import Limits

PLAIN_BASES = {"nn.Module", "torch.nn.Module", "Module"}
_QUICK_CHARS = 16 << 10
"""A text of so many characters is compiled in a fraction of a second, whatever it says."""
_COMPILE_S, _COMPILE_WALL_S = 2, 60.0
"""CPU seconds that a longer one may take, and how long to wait for them."""
_COMPILE = """
import ast, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
compile(ast.parse(sys.stdin.buffer.read()), "<candidate>", "exec", dont_inherit=True)
"""


@dataclass(frozen=True)
class Problem:
    outcome: Outcome
    """BUILD_FAILED where no class can come of the text, CONTRACT_BROKEN where the class is the wrong one."""
    message: str
    line: int | None = None
    text: bool = True
    """Whether the source is text that a file can hold."""


def check_source(
    spec: TaskSpec, text: str, cases: Sequence[CaseSpec] = (), *, max_bytes: int = Limits.source_bytes
) -> list[Problem]:
    """Problems of a candidate's text; empty where there is none to see.

    ``cases`` are those whose constructions and calls must bind; by default all of the task, of both devices.
    """
    unreadable = _readable(text, max_bytes) or _declares_utf8(text)
    if unreadable is not None:
        return [unreadable]
    compiled = False
    if len(text) > _QUICK_CHARS:
        compiled, slow = _compiled_elsewhere(text)
        if slow is not None:
            return [slow]
    try:
        tree = ast.parse(text)
        if not compiled:
            compile(tree, "<candidate>", "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = (error.text or "").strip()[:120]
        at = f"line {error.lineno}: " if error.lineno else ""
        return [
            Problem(Outcome.BUILD_FAILED, f"syntax error: {at}{error.msg}{f': {shown}' if shown else ''}", error.lineno)
        ]
    except (ValueError, RecursionError, MemoryError) as error:
        return [Problem(Outcome.BUILD_FAILED, f"the file can't be parsed: {error or type(error).__name__}")]
    try:
        return list(_classes(spec, tree, cases or [*spec.cases, *spec.cpu_cases]))
    except (ValueError, RecursionError, MemoryError) as error:
        # Nested too deeply to walk, a number too long to print, two parameters of one name.
        said = str(error) or type(error).__name__
        return [Problem(Outcome.BUILD_FAILED, f"the classes of the file can't be read: {said}")]


def _compiled_elsewhere(text: str) -> tuple[bool, Problem | None]:
    """Compile a long text in a process of its own, since nothing else of this one runs while it compiles.

    Gives whether it compiles, and a problem where that takes too long or ends the compiler.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _COMPILE, str(_COMPILE_S)],
            input=text.encode("utf-8"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_COMPILE_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, None  # the machine is slow, which says nothing of the text
    if done.returncode >= 0:
        return done.returncode == 0, None
    said = f"it ends Python's compiler with {signal.Signals(-done.returncode).name}"
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        said = f"it takes Python's compiler more than {_COMPILE_S} s; make it shorter or simpler"
    return False, Problem(Outcome.BUILD_FAILED, f"the file can't be parsed: {said}")


def _readable(text: str, max_bytes: int) -> Problem | None:
    if not text.strip():
        return Problem(Outcome.BUILD_FAILED, "the file is empty")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        what = f"line {line} holds a lone surrogate (\\u{ord(text[error.start]):04x}), which no UTF-8 file can hold"
        return Problem(Outcome.BUILD_FAILED, what, line, text=False)
    if size > max_bytes:
        return Problem(Outcome.BUILD_FAILED, f"the file has {size} bytes; at most {max_bytes} are taken")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return Problem(Outcome.BUILD_FAILED, f"line {line} holds a NUL character", line, text=False)
    return None


def _declares_utf8(text: str) -> Problem | None:
    """What is wrong with the file's ``# coding:`` line: the text is UTF-8, and Python would read it as something else.

    Also where all is ASCII: in some encodings a comment decodes into code.
    """
    # As Python's own reader does; the one of tokenize takes a lone carriage return for a part of the line.
    lines = io.BytesIO(text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8"))
    line = 0

    def read() -> bytes:
        nonlocal line
        line += 1
        return lines.readline()

    try:
        encoding, _ = tokenize.detect_encoding(read)
        if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
            return None
        said = f"line {line} declares the encoding {encoding}"
    except SyntaxError as error:
        said = f"line {line}: {error.msg}"
    return Problem(
        Outcome.BUILD_FAILED,
        f"{said}; candidates are read as UTF-8: remove the coding line, and save the file as UTF-8",
        line,
    )


def _classes(spec: TaskSpec, tree: ast.Module, cases: Sequence[CaseSpec]) -> Iterator[Problem]:
    defined, other, anything = _module_names(tree.body)
    for name in dict.fromkeys(case.entry for case in cases):
        if name in other or (name not in defined and anything):
            continue
        if name not in defined:
            yield Problem(Outcome.CONTRACT_BROKEN, f"no class {name!r} in the file; {_found(defined)}")
            continue
        yield from _binds(spec, defined[name], [case for case in cases if case.entry == name])


def _found(defined: dict[str, ast.ClassDef]) -> str:
    return f"its classes: {', '.join(list(defined)[:8])}" if defined else "it defines no class"


def _module_names(body: Sequence[ast.stmt]) -> tuple[dict[str, ast.ClassDef], set[str], bool]:
    """Classes of the module by name; names bound in another way; whether it may bind names that can't be read."""
    defined: dict[str, ast.ClassDef] = {}
    other: set[str] = set()
    anything = False
    todo: list[ast.AST] = list(reversed(body))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ClassDef):
            if node.name in defined:
                other.add(node.name)  # which of two definitions holds may depend on a condition
            defined[node.name] = node
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            other.add(node.name)
            anything = anything or node.name == "__getattr__"
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                anything = anything or alias.name == "*"
                other.add(alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            other.add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            anything = anything or node.func.id in ("exec", "globals", "setattr", "vars", "locals")
        todo.extend(ast.iter_child_nodes(node))
    return defined, other, anything


def _binds(spec: TaskSpec, node: ast.ClassDef, cases: Sequence[CaseSpec]) -> Iterator[Problem]:
    if node.decorator_list or node.keywords:
        return
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = {name.id for item in node.body for name in ast.walk(item) if isinstance(name, ast.Name)}
    # A method whose name is bound once more may be wrapped into another.
    yield from _suspended(node.name, [method for name, method in methods.items() if name not in assigned])
    plain = bool(node.bases) and all(ast.unparse(base) in PLAIN_BASES for base in node.bases)
    for method in ("__init__", "forward"):
        if method in methods and not methods[method].decorator_list:
            yield from _calls(spec, node.name, methods[method], cases)
        elif method not in methods and plain and method not in assigned and "__call__" not in methods:
            yield from _absent(spec, node, method, cases)


def _suspended(class_name: str, methods: Sequence[ast.FunctionDef | ast.AsyncFunctionDef]) -> Iterator[Problem]:
    """Methods that give a coroutine or a generator when they are called, instead of doing what they say."""
    for method in methods:
        if method.name not in ("__init__", "forward", "__call__") or method.decorator_list:
            continue
        name, yielding = f"{class_name}.{method.name}", _first_yield(method)
        if isinstance(method, ast.AsyncFunctionDef):
            text = f"{name} is `async def`: a call only gives a coroutine. Write `def {method.name}`"
            yield Problem(Outcome.CONTRACT_BROKEN, text, method.lineno)
        elif yielding is not None:
            text = f"{name} is a generator (`yield` in line {yielding.lineno}): a call runs nothing. Use `return`"
            yield Problem(Outcome.CONTRACT_BROKEN, text, yielding.lineno)


def _first_yield(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """The first ``yield`` of a function itself, not of one that is defined in it."""
    todo: list[ast.AST] = list(reversed(function.body))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(reversed(list(ast.iter_child_nodes(node))))
    return None


def _absent(spec: TaskSpec, node: ast.ClassDef, method: str, cases: Sequence[CaseSpec]) -> Iterator[Problem]:
    if method == "forward":
        text = f"class {node.name} defines no forward"
        yield Problem(Outcome.CONTRACT_BROKEN, text, node.lineno)
    elif wanted := next((case for case in cases if passed_init(spec, case)), None):
        text = f"class {node.name} defines no __init__, but case {wanted.id} constructs {construction(spec, wanted)}"
        yield Problem(Outcome.CONTRACT_BROKEN, text, node.lineno)


def _calls(
    spec: TaskSpec, class_name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, cases: Sequence[CaseSpec]
) -> Iterator[Problem]:
    signature = _signature(function.args)
    told: set[str] = set()
    for case in cases:
        if function.name == "__init__":
            positional, keywords, call = [], passed_init(spec, case), construction(spec, case)
        else:
            positional = list(spec.entries[case.entry].forms[case.form].arguments)
            keywords, call = {}, f"forward({', '.join(positional)})"
        try:
            signature.bind(None, *positional, **keywords)
        except TypeError as error:
            if call not in told:
                told.add(call)
                text = (
                    f"{class_name}.{function.name}({ast.unparse(function.args)}) can't take {call}, "
                    f"which case {case.id} calls: {error}"
                )
                yield Problem(Outcome.CONTRACT_BROKEN, text, function.lineno)


def construction(spec: TaskSpec, case: CaseSpec) -> str:
    """The construction that a case makes, as Python: ``RMSNorm(hidden_size=4096, eps=1e-05)``."""
    return f"{case.entry}({', '.join(f'{name}={value!r}' for name, value in passed_init(spec, case).items())})"


def _signature(arguments: ast.arguments) -> inspect.Signature:
    kinds = inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    parameters = [
        kinds(
            argument.arg,
            kinds.POSITIONAL_ONLY if i < len(arguments.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD,
            default=kinds.empty if i < first_default else None,
        )
        for i, argument in enumerate(positional)
    ]
    if arguments.vararg:
        parameters.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    parameters += [
        kinds(argument.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else None)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parameters.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)
