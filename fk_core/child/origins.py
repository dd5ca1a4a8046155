"""Whose code something is: the standard library's, a library's, or the candidate's."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from os.path import abspath, realpath
from types import CodeType, FrameType, FunctionType
from typing import Any

FROZEN = "<frozen "
_HARNESS = os.path.dirname(os.path.dirname(abspath(__file__))) + os.sep


def library_roots(candidate_file: str = "") -> tuple[str, ...]:
    """Folders of installed packages, ending in a separator: also those that only ``sys.path`` names, but for folders
    that the candidate's file lies in.
    """
    places = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    places += [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    places += [
        os.path.dirname(os.path.dirname(abspath(sys.modules[m].__file__ or "")))
        for m in ("torch", "triton")
        if m in sys.modules
    ]
    stdlib = stdlib_roots()
    places += [entry for entry in sys.path if os.path.isdir(entry) and not (abspath(entry) + os.sep).startswith(stdlib)]
    found = {form(place) + os.sep for place in places for form in (abspath, realpath)}
    own = (abspath(candidate_file), realpath(candidate_file))
    return tuple(place for place in found if not any(path.startswith(place) for path in own) and place not in stdlib)


def stdlib_roots() -> tuple[str, ...]:
    places = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)]
    return tuple({form(place) + os.sep for place in places for form in (abspath, realpath)})


class Origins:
    """Tells whose code a file name is: the standard library's, a library's, or the candidate's."""

    def __init__(self, candidate_file: str) -> None:
        self.candidate = candidate_file
        self.libraries = (*library_roots(candidate_file), _HARNESS)
        self.stdlib = stdlib_roots()
        names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
        folders = [os.environ.get(name, "") for name in names]
        self.generated = tuple({form(f) + os.sep for f in folders if f for form in (abspath, realpath)})
        self._known: dict[str, str] = {candidate_file: "candidate"}

    def of(self, filename: str) -> str:
        """``stdlib`` (also code without a file, and code that compilers generated), ``library`` or ``candidate``."""
        kind = self._known.get(filename)
        if kind is None:
            kind = self._known[filename] = self._judge(filename)
        return kind

    def _judge(self, filename: str) -> str:
        if filename.startswith("<") or filename.startswith(self.generated or ("\0",)):
            return "stdlib"
        if filename.startswith(self.libraries):
            # Wrappers that start processes for whoever calls them are looked through, as their originals are.
            return "stdlib" if f"{os.sep}torch{os.sep}multiprocessing{os.sep}" in filename else "library"
        return "stdlib" if filename.startswith(self.stdlib) else "candidate"

    def of_value(self, value: Any) -> str:
        """Whose a function, class or other callable is. Code that was compiled from text, as by ``exec``, is the
        candidate's: libraries rebind and register functions from files.
        """
        for step in ("__func__", "func", "fget"):
            inner = None if isinstance(value, (FunctionType, type)) else _attribute(value, step)
            value = value if inner is None else inner
        code = _attribute(value, "__code__")
        if isinstance(code, CodeType):
            text = code.co_filename.startswith("<") and not code.co_filename.startswith(FROZEN)
            return "candidate" if text else self.of(code.co_filename)
        kind = value if isinstance(value, type) else type(value)
        name = _attribute(value, "__module__") or kind.__module__
        module = sys.modules.get(name) if isinstance(name, str) else None
        file = _attribute(module, "__file__")
        if isinstance(file, str):
            return self.of(file)
        return "stdlib" if module is not None else "candidate"

    def blame(self, frame: FrameType | None) -> tuple[bool, str]:
        """Whether the candidate is behind a frame, and the candidate's line."""
        while frame is not None:
            code = frame.f_code
            origin = self.of(code.co_filename)
            if origin == "candidate":
                return True, f"line {frame.f_lineno}, in {code.co_name}"
            if origin == "library":
                return False, ""
            frame = frame.f_back
        return False, ""


def _attribute(value: Any, name: str) -> Any:
    """An attribute, or None where there is none or where asking for it fails: the value may be the candidate's."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001
        return None
