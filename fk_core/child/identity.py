"""The table of functions that nobody may replace, taken before the candidate is loaded and compared afterwards.

Every function, class and module attribute of the libraries that measure, compare, print or time is remembered by
identity, with its code object, defaults and closure. A replaced one is a finding even if nothing ever calls it. New
names are ignored, unless they hide something: an inherited method, or a builtin inside a module. What a library does to
itself under the same name (lazy loading, wrapping) is ignored too.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types
from typing import Any

import torch

from fk_core.child.finding import Finding, finding
from fk_core.child.origins import Origins

_MODULES = (
    *("builtins", "sys", "os", "posix", "time", "math", "statistics", "random", "json", "json.decoder"),
    *("json.encoder", "struct", "socket", "select", "signal", "threading", "_thread", "subprocess", "gc", "inspect"),
    *("importlib", "importlib.util", "linecache", "traceback", "io", "array", "ctypes", "atexit", "weakref"),
    *("operator", "functools", "collections", "pathlib", "contextlib", "warnings", "__main__"),
    *("numpy", "numpy.linalg", "numpy.random", "numpy.testing"),
    *(
        "torch",
        "torch.nn",
        "torch.nn.functional",
        "torch.nn.init",
        "torch.nn.modules.module",
        "torch._C",
        "torch._C._nn",
    ),
    *("torch._tensor", "torch.overrides", "torch.functional", "torch.linalg", "torch.special", "torch.random"),
    *("torch.cuda", "torch.cuda.graphs", "torch.cuda.streams", "torch.cuda.memory", "torch.cuda.random"),
    *("torch.testing", "torch.testing._comparison", "torch.autograd", "torch.autograd.grad_mode", "torch.library"),
    *("torch.autograd.profiler", "torch.profiler", "torch.profiler.profiler", "torch.utils.benchmark"),
    *("torch.utils.benchmark.utils.timer", "torch.utils.benchmark.utils.common", "torch.utils._python_dispatch"),
    *("torch.backends.cuda", "torch.backends.cudnn", "torch.serialization", "torch.storage", "torch.utils.dlpack"),
    *("triton", "triton.testing", "triton.runtime.jit", "triton.runtime.driver", "triton.runtime.autotuner"),
    *("triton.runtime.cache", "triton.compiler.compiler"),
)
_CLASSES = (
    *("torch.Tensor", "torch._C.TensorBase", "torch.nn.Module", "torch.nn.Parameter", "torch.Generator"),
    *("torch.UntypedStorage", "torch.TypedStorage", "torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.CUDAGraph"),
    *("torch.cuda.graph", "torch._C._CudaEventBase", "torch._C._CudaStreamBase", "torch._C._CUDAGraph"),
    *("torch.autograd.Function", "torch.utils.benchmark.Timer", "torch.profiler.profile"),
    *("json.JSONEncoder", "json.JSONDecoder", "threading.Thread", "subprocess.Popen", "socket.socket"),
    *(
        "triton.runtime.jit.JITFunction",
        "triton.runtime.autotuner.Autotuner",
        "triton.compiler.compiler.CompiledKernel",
    ),
    *(
        "pathlib.PurePath",
        "pathlib.PosixPath",
        "statistics.NormalDist",
        "random.Random",
        "random.SystemRandom",
        "io.TextIOWrapper",
    ),
)
_FOLLOWS_A_FLAG = frozenset({"torch.Storage"})
"""Rebound by torch itself when a flag changes, which is reported as the flag."""
_SAFE_NEW = frozenset({"__getattr__", "__dir__", "__warningregistry__"})
_CLASS_NOISE = frozenset(
    ("__doc__", "__module__", "__dict__", "__weakref__", "__annotations__", "__slots__", "__abstractmethods__")
)
_CONSTANTS = frozenset({"math", "torch", "numpy"})
_OWN = "fk_core.child."
_Missing = object()
_FUNCTIONS = (types.FunctionType,)
_KEPT = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type, property),
    *(staticmethod, classmethod, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.ClassMethodDescriptorType, torch.dtype),
)


def _function_of(value: Any) -> types.FunctionType | None:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, _FUNCTIONS) else None


def _inside(function: types.FunctionType) -> tuple[Any, ...]:
    """What a function runs on, as objects that are compared by identity."""
    closure = function.__closure__
    cells: tuple[Any, ...] = ()
    if closure:
        cells = tuple(value for value in (_cell(cell) for cell in closure) if callable(value))
    return (function.__code__, function.__defaults__, function.__kwdefaults__, *cells)


def _changed_inside(function: types.FunctionType, before: tuple[Any, ...]) -> bool:
    """Whether a function runs on other objects than :func:`_inside` found."""
    if not function.__closure__ and len(before) == 3:  # nearly all; a checkpoint looks at thousands
        code, defaults, keywords = before
        return not (
            function.__code__ is code and function.__defaults__ is defaults and function.__kwdefaults__ is keywords
        )
    now = _inside(function)
    return len(now) != len(before) or any(a is not b for a, b in zip(before, now, strict=True))


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _resolve(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    owner = sys.modules.get(module)
    return getattr(owner, name, None) if owner is not None else None


class _Namespace:
    """One module or class, with what it held."""

    __slots__ = ("inner", "label", "names", "owner", "values")

    def __init__(self, label: str, owner: Any) -> None:
        self.label, self.owner = label, owner
        held = vars(owner)
        self.names = frozenset(held)
        self.values = {
            name: value
            for name, value in list(held.items())
            if f"{label}.{name}" not in _FOLLOWS_A_FLAG
            and (isinstance(value, _KEPT) or callable(value) or (isinstance(value, float) and label in _CONSTANTS))
            and name not in _CLASS_NOISE
        }
        self.inner = {
            name: (function, _inside(function))
            for name, value in self.values.items()
            if (function := _function_of(value)) is not None
        }

    def same(self) -> bool:
        """Whether the owner holds the same objects under the same names. For before a candidate is loaded: what this
        calls could be replaced.
        """
        now = vars(self.owner)
        return now.keys() == self.names and all(map(operator.is_, map(now.get, self.values), self.values.values()))


class Table:
    """What the protected namespaces held when the table was made. Packages in ``allowed`` may replace functions.

    ``earlier``: one that was made before, when no candidate's code had run yet. What is still as it says is not gone
    through again.
    """

    spaces: list[_Namespace]

    def __init__(self, allowed: frozenset[str] = frozenset(), earlier: Table | None = None) -> None:
        self.allowed = allowed
        known = {} if earlier is None else {(space.label, id(space.owner)): space for space in earlier.spaces}
        modules = {name: sys.modules[name] for name in _MODULES if name in sys.modules}
        modules |= {name: module for name, module in list(sys.modules.items()) if name.startswith(_OWN)}
        classes: dict[int, tuple[str, type]] = {}
        for name in _CLASSES:
            found = _resolve(name)
            if isinstance(found, type):
                classes[id(found)] = (name, found)
        for name, module in modules.items():
            if name.startswith(_OWN):
                for value in list(vars(module).values()):
                    if isinstance(value, type) and value.__module__ == name:
                        classes[id(value)] = (f"{name}.{value.__name__}", value)
        for kind in _subclasses(torch.nn.Module):
            classes.setdefault(id(kind), (f"{kind.__module__}.{kind.__qualname__}", kind))
        self.modules = modules
        self.spaces = [
            _namespace(name, owner, known.get((name, id(owner))))
            for name, owner in [*modules.items(), *classes.values()]
        ]

    def compare(self, origins: Origins) -> list[Finding]:
        """Findings for everything that was replaced since."""
        found: list[Finding] = []
        loaded = sys.modules
        for name, module in self.modules.items():
            if loaded.get(name) is not module:
                found.append(_replaced(f"sys.modules[{name!r}]", module, loaded.get(name, _Missing), origins))
        for space in self.spaces:
            now = vars(space.owner)
            # With no function of this module, which could be replaced: its own names come up here, too.
            for name, value in space.values.items():
                current = now.get(name, _Missing)
                if current is not value and not self._harmless(value, current, origins):
                    found.append(_replaced(f"{space.label}.{name}", value, current, origins))
            for name, (function, inner) in space.inner.items():
                if _changed_inside(function, inner):
                    found.append(
                        finding("patched_function", f"the code of {space.label}.{name} was replaced", instead=_INSTEAD)
                    )
            if len(now) != len(space.names) or not space.names.issuperset(now):
                found += _hiding(space, now, origins)
        return found

    def _harmless(self, before: Any, after: Any, origins: Origins) -> bool:
        if _harmless(before, after, origins):
            return True
        package = str(getattr(after, "__module__", "")).partition(".")[0]
        return package in self.allowed and origins.of_value(after) == "library"


def _namespace(label: str, owner: Any, earlier: _Namespace | None) -> _Namespace:
    """What ``owner`` holds; what was found before, where that is still so."""
    return earlier if earlier is not None and earlier.same() else _Namespace(label, owner)


_INSTEAD = "leave the functions of other modules alone; call your own under a name of its own"


def _subclasses(kind: type) -> list[type]:
    found: list[type] = []
    children: list[type] = type.__subclasses__(kind)
    for child in children:
        found.append(child)
        found += _subclasses(child)
    return found


def _harmless(before: Any, after: Any, origins: Origins) -> bool:
    """Whether a library loaded or wrapped its own attribute, or a plain number was only equal, not the same."""
    if after is _Missing:
        return False
    if isinstance(before, float):
        return type(after) is float and after == before
    if isinstance(before, torch.dtype):
        return False
    if not callable(after) and not isinstance(after, types.ModuleType):
        return False
    if origins.of_value(after) == "candidate":
        return False
    if origins.of_value(after) == "library" and "<locals>" in str(getattr(after, "__qualname__", "")):
        return True  # a wrapper that a library made, as torch.compile does around Module.__init__
    old, new = (getattr(value, "__name__", None) for value in (before, after))
    return old is not None and old == new and getattr(before, "__module__", 0) == getattr(after, "__module__", 1)


def _replaced(label: str, before: Any, after: Any, origins: Origins) -> Finding:
    if after is _Missing:
        return finding("patched_function", f"{label} was deleted", instead=_INSTEAD)
    return finding(
        "patched_function",
        f"{label} was {_name(before)} and is now {_name(after)}",
        where=_line(after, origins),
        instead=_INSTEAD,
    )


def _hiding(space: _Namespace, now: Any, origins: Origins) -> list[Finding]:
    found = []
    for name in list(now):
        if name in space.names or name in _SAFE_NEW or name in _CLASS_NOISE:
            continue
        hidden: Any
        if isinstance(space.owner, type):
            hidden = next((base for base in space.owner.__mro__[1:] if name in vars(base)), None)
        else:
            hidden = builtins if name in vars(builtins) and not name.startswith("__") else None
        value = now[name]
        if hidden is not None and origins.of_value(value) == "candidate":
            what = f"{space.label}.{name} now hides the one of {hidden.__name__}"
            found.append(finding("patched_function", what, where=_line(value, origins), instead=_INSTEAD))
    return found


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    return (
        f"{module}.{name}" if isinstance(name, str) and isinstance(module, str) else str(name or type(value).__name__)
    )


def _line(value: Any, origins: Origins) -> str:
    code = getattr(_function_of(value) or value, "__code__", None)
    if isinstance(code, types.CodeType) and origins.of(code.co_filename) == "candidate":
        return f"line {code.co_firstlineno}"
    return ""
