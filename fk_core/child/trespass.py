"""Files that a candidate has no business with: the harness's, those outside its own folder, and production kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from os.path import abspath, realpath
from types import FrameType
from typing import Any

from fk_core.child.finding import POLICY, WARN
from fk_core.child.origins import Origins

# Bound now, so that replacing them later blinds nobody.
_getpid, _fspath, _fsdecode, _readlink = os.getpid, os.fspath, os.fsdecode, os.readlink
_O_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

OWN_CODE = "write the kernel itself, or ask the caller to allow {}"
_OWN_FOLDER = "write under the folder that HOME and TMPDIR name"
_TWO_PATHS = ("os.rename", "os.link", "shutil.move")


class Trespass:
    """Handlers of the audit events that carry paths."""

    def __init__(
        self,
        origins: Origins,
        note: Callable[..., None],
        *,
        scratch: str,
        forbidden: list[str],
        policy: frozenset[str],
    ) -> None:
        self.origins, self.note, self.policy = origins, note, policy
        self.scratch = _roots([scratch])
        self.forbidden = _roots(forbidden)
        self.own_files = {abspath(origins.candidate), realpath(origins.candidate)}

    def on_open(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        name, mode, flags = (*args, None, None, None)[:3]
        if isinstance(name, int) or name is None:
            return
        path = _absolute(name)
        writes = bool(flags & _O_WRITE) if isinstance(flags, int) else bool(mode) and bool(set("wax+") & set(mode))
        self._refuse_harness(path, frame)
        if writes:
            self._refuse_outside(path, frame, "writes")
        elif path.startswith("/proc/"):
            self._note_processes(path, frame)
        else:
            self._note_production(path, frame)

    def on_dlopen(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        name = args[0]
        if name is None:
            return
        path = _absolute(name) if isinstance(name, (str, bytes)) and os.sep in _fsdecode(name) else str(name)
        owner = _package_of(path, self.origins.libraries)
        if owner in self.policy:
            where = self.origins.blame(frame)[1]
            self.note("baseline_call", f"loads {path}", where, severity=POLICY, instead=OWN_CODE.format(owner))
        elif self.origins.blame(frame)[0]:
            self.note("ctypes", f"loads {name} through ctypes", self.origins.blame(frame)[1], severity=WARN)

    def on_change(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """``args`` are one or two paths, then numbers, the last of which may be a folder's descriptor."""
        if event == "os.symlink":
            names, folders = args[1:2], args[2:3]
        elif event in _TWO_PATHS:
            names, folders = args[:2], args[2:4]
        else:
            names, folders = args[:1], args[-1:]
        for i, name in enumerate(names):
            if not isinstance(name, int) and name is not None:
                path = _absolute(name, folders[min(i, len(folders) - 1)] if folders else None)
                self._refuse_harness(path, frame)
                self._refuse_outside(path, frame, f"calls {event} on")

    def on_list(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        if args and args[0] is not None and not isinstance(args[0], int):
            self._refuse_harness(_absolute(args[0]), frame)

    def _own(self, path: str) -> bool:
        return (path + os.sep).startswith(self.scratch) or path in self.own_files

    def _refuse_harness(self, path: str, frame: FrameType) -> None:
        if self.forbidden and (path + os.sep).startswith(self.forbidden) and not self._own(path):
            where = self.origins.blame(frame)[1]
            self.note("oracle_leak", f"opens {path}", where, instead="a candidate needs nothing of the harness")
            raise PermissionError(f"{path} belongs to the harness")

    def _refuse_outside(self, path: str, frame: FrameType, verb: str) -> None:
        if self._own(path) or path in ("/dev/null", "/dev/tty") or path.startswith("/dev/nvidia"):
            return
        mine, where = self.origins.blame(frame)
        if mine:
            self.note("filesystem", f"{verb} {path}", where, instead=_OWN_FOLDER)
            raise PermissionError(f"{path} lies outside the candidate's own folder")

    def _note_processes(self, path: str, frame: FrameType) -> None:
        who, _, what = path.removeprefix("/proc/").partition("/")
        other = who.isdigit() and int(who) != _getpid()
        if other or what in ("mem", "environ"):
            mine, where = self.origins.blame(frame)
            if mine:
                self.note("oracle_leak", f"reads {path}", where, instead="a kernel needs nothing from any process")

    def _note_production(self, path: str, frame: FrameType) -> None:
        owner = _package_of(path, self.origins.libraries)
        if owner in self.policy and not path.endswith((".pth", "METADATA", "RECORD")):
            mine, where = self.origins.blame(frame)
            if mine:
                what = f"reads a file of {owner}: {path}"
                self.note("baseline_call", what, where, severity=POLICY, instead=OWN_CODE.format(owner))


def _roots(paths: list[str]) -> tuple[str, ...]:
    return tuple({form(path).rstrip(os.sep) + os.sep for path in paths if path for form in (abspath, realpath)})


def _absolute(name: Any, folder: Any = None) -> str:
    """The path without links, as far as it can be told; ``folder`` is the descriptor that a relative name starts at."""
    text = _fsdecode(_fspath(name))
    if isinstance(folder, int) and folder > 0 and not text.startswith(os.sep):
        try:
            text = _readlink(f"/proc/self/fd/{folder}") + os.sep + text
        except OSError:
            pass
    return realpath(text)


def _package_of(path: str, roots: tuple[str, ...]) -> str:
    """Top-level package that an installed file belongs to, or an empty string."""
    for root in roots:
        if path.startswith(root):
            return path[len(root) :].partition(os.sep)[0].partition(".")[0]
    return ""
