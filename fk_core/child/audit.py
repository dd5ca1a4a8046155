"""What the candidate does while it runs, seen by a Python audit hook and told apart from what its libraries do.

An event counts against the candidate only if, walking up from the event, the first frame outside the standard library
is not a library's: PyTorch, Triton and inductor start threads, run compilers and read ``/proc`` too. Events that only
look odd are warnings; a few are blocked with PermissionError as well as noted.

The hook is a second line: code that owns its process can lie about all of this. The first line is what the process
cannot reach at all.
"""

from __future__ import annotations

import _thread
import os
import pathlib
import socket
import sys
import threading
from _thread import get_ident
from collections.abc import Callable
from types import FrameType, FunctionType, ModuleType
from typing import Any

from fk_core.child.finding import POLICY, REJECT, WARN, Finding, finding
from fk_core.child.origins import FROZEN, Origins
from fk_core.child.trespass import OWN_CODE, Trespass

MOST_FINDINGS = 40

# Bound now, so that replacing them later blinds nobody.
_getframe, _getpid, _open, _read, _close = sys._getframe, os.getpid, os.open, os.read, os.close


class Audit:
    """The hook and what it saw. ``phase`` is ``import`` until the file is loaded, then ``calls``."""

    __slots__ = ("_handlers", "_inside", "_seen", "findings", "origins", "paths", "phase", "policy", "threads")

    def __init__(
        self,
        origins: Origins,
        *,
        scratch: str,
        forbidden: list[str],
        policy: list[str],
        allow: list[str],
    ) -> None:
        self.origins = origins
        self.phase = "import"
        self.findings: list[Finding] = []
        self.threads: list[Any] = []
        """Thread objects that the candidate started."""
        self.policy = frozenset(name for name in policy if name not in set(allow))
        self.paths = Trespass(origins, self.note, scratch=scratch, forbidden=forbidden, policy=self.policy)
        self._seen: set[tuple[str, str, str]] = set()
        self._inside: set[int] = set()
        self._handlers = self._table()

    def arm(self) -> None:
        if sys.version_info < (3, 12):
            _announce_threads()
        sys.addaudithook(self._make_hook())

    def listen(self, event: str, handler: Callable[[str, tuple[Any, ...], FrameType], None]) -> None:
        """Have ``handler`` called with another event, its arguments and the frame that raised it."""
        self._handlers[event] = handler

    def note(self, kind: str, what: str, where: str = "", *, instead: str = "", severity: str = REJECT) -> None:
        key = (kind, where or what, severity)
        if key in self._seen or len(self.findings) >= MOST_FINDINGS:
            return
        self._seen.add(key)
        self.findings.append(finding(kind, what, where=where, instead=instead, severity=severity))

    def _make_hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        get, inside, ident, frame_of = self._handlers.get, self._inside, get_ident, _getframe
        note, plain = self.note, _plain

        def hook(event: str, args: tuple[Any, ...]) -> None:
            handle = get(event)
            if handle is None:
                return
            me = ident()
            if me in inside:
                return
            inside.add(me)
            try:
                handle(event, plain(args), frame_of(1))
            except PermissionError:
                raise
            except Exception as fault:  # noqa: BLE001 - a fault of the monitor must not become one of the candidate
                note("guard_fault", f"the monitor failed on {event}: {type(fault).__name__}: {fault}", severity=WARN)
            finally:
                inside.discard(me)

        return hook

    # -- what each event means -------------------------------------------------------------------------------------

    def _table(self) -> dict[str, Callable[[str, tuple[Any, ...], FrameType], None]]:
        paths = self.paths
        table: dict[str, Callable[[str, tuple[Any, ...], FrameType], None]] = {
            "open": paths.on_open,
            "import": self._on_import,
            "object.__setattr__": self._on_setattr,
            "code.__new__": self._on_code,
            "compile": self._on_compile,
            "ctypes.dlopen": paths.on_dlopen,
            "_thread.start_new_thread": self._on_thread,
            "_thread.start_joinable_thread": self._on_thread,
            "subprocess.Popen": self._on_program,
            "os.posix_spawn": self._on_program,
            "os.system": self._on_program,
            "sys.addaudithook": self._on_addaudithook,
            "os.kill": self._on_kill,
            "os.killpg": self._on_kill,
            "signal.pthread_kill": self._on_odd,
        }
        table |= dict.fromkeys(("os.fork", "os.forkpty", "pty.spawn"), self._on_fork)
        table |= dict.fromkeys(("os.exec",), self._on_exec)
        connects = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")
        table |= dict.fromkeys(connects, self._on_network)
        table["socket.__new__"] = self._on_socket
        traces = ("sys.setprofile", "sys.settrace", "sys.monitoring.register_callback")
        table |= dict.fromkeys(traces, self._on_trace)
        looks = ("sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents")
        table |= dict.fromkeys(looks, self._on_look)
        table |= dict.fromkeys(("ctypes.dlsym", "ctypes.call_function", "ctypes.string_at"), self._on_odd)
        one = ("os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.truncate", "os.utime", "os.setxattr")
        table |= dict.fromkeys(one, paths.on_change)
        table |= dict.fromkeys(("os.rename", "os.link", "os.symlink", "shutil.rmtree", "shutil.move"), paths.on_change)
        table |= dict.fromkeys(("os.listdir", "os.scandir", "os.walk", "glob.glob", "os.chdir"), paths.on_list)
        table |= dict.fromkeys(("resource.setrlimit", "resource.prlimit"), self._on_limits)
        return table

    def _on_import(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        if type(args[0]) is not str:
            return
        top = args[0].partition(".")[0]
        if top in self.policy:
            mine, where = self.origins.blame(frame)
            if mine:
                self.note("baseline_call", f"imports {args[0]}", where, severity=POLICY, instead=OWN_CODE.format(top))
        elif top in ("fk_core", "fk_server"):
            mine, where = self.origins.blame(frame)
            if mine:
                self.note(
                    "oracle_leak", f"imports {args[0]}", where, instead="a candidate needs nothing of the harness"
                )

    def _on_setattr(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        target, name = args[0], args[1]
        if isinstance(target, FunctionType):
            file = target.__code__.co_filename
            # namedtuple and dataclass finish functions that they have just generated.
            if file.startswith("<") or self.origins.of(file) == "candidate":
                return
        elif not isinstance(target, ModuleType):
            return
        mine, where = self.origins.blame(frame)
        if mine:
            label = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}".lstrip(".")
            self.note("patched_function", f"replaces {name} of {label}", where, instead=_NO_PATCH)

    def _on_code(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        self._refuse_forged_name(args[1] if len(args) > 1 else None, frame)

    def _on_compile(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        self._refuse_forged_name(args[1] if len(args) > 1 else None, frame)

    def _refuse_forged_name(self, filename: Any, frame: FrameType) -> None:
        if not isinstance(filename, str):
            return
        if filename.startswith((FROZEN, *self.origins.stdlib, *self.origins.libraries)):
            # importlib compiles library files from frames of its own; only a direct request can forge a name.
            mine = self.origins.of(frame.f_code.co_filename) == "candidate"
            if mine:
                self.note(
                    "forged_frame",
                    f"makes code that claims to be {filename}",
                    f"line {frame.f_lineno}",
                    instead="compile generated code under a name of its own",
                )

    def _on_thread(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        if frame.f_code is _start_and_tell.__code__ and frame.f_back is not None:
            frame = frame.f_back
        mine, where = self.origins.blame(frame)
        if not mine:
            return
        thread = getattr(args[0], "__self__", None)
        if isinstance(thread, threading.Thread):
            self.threads.append(thread)
            if self.phase == "import":
                return
        self.note("thread", "starts a thread", where, instead=_NO_THREADS)

    def _on_fork(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        mine, where = self.origins.blame(frame)
        if mine:
            self.note("process", f"forks ({event})", where, instead=_NO_PROCESSES)

    def _on_program(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        mine, where = self.origins.blame(frame)
        if mine:
            severity = WARN if self.phase == "import" else REJECT
            program = _text(args[0])
            self.note("process", f"runs {program}", where, severity=severity, instead=_NO_PROCESSES)

    def _on_exec(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        mine, where = self.origins.blame(frame)
        if mine:
            self.note("process", f"replaces its process by {_text(args[0])}", where, instead=_NO_PROCESSES)
            raise PermissionError("a candidate may not replace its process")

    def _on_kill(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        target = args[0]
        if target == _getpid() or (event == "os.kill" and args[1] == 0) or _is_child(target):
            return
        mine, where = self.origins.blame(frame)
        if mine:
            self.note("harness_kill", f"signals process {target}", where, instead="a kernel signals nobody")
            raise PermissionError("a candidate may signal only itself and its children")

    def _on_network(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        mine, where = self.origins.blame(frame)
        if mine and not (event in ("socket.connect", "socket.bind") and isinstance(args[1], (str, bytes))):
            self.note(
                "network",
                f"{event} {args[1:] if event[7] in 'cbs' else args[:1]}",
                where,
                instead=_NO_NETWORK,
            )

    def _on_socket(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        if args[1] in _NETWORKS:
            mine, where = self.origins.blame(frame)
            if mine:
                self.note("network", "opens a network socket", where, instead=_NO_NETWORK)

    def _on_trace(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        mine, where = self.origins.blame(frame)
        if mine:
            self.note("trace_hook", f"calls {event}", where, instead="leave profilers and tracers to the harness")

    def _on_look(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        # namedtuple, logging and warnings look at frames for their caller: only a direct look is the candidate's.
        if self.origins.of(frame.f_code.co_filename) == "candidate":
            self.note("introspection", f"calls {event}", f"line {frame.f_lineno}", severity=WARN)

    def _on_odd(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        if self.origins.of(frame.f_code.co_filename) == "candidate":
            self.note("ctypes", f"uses {event}", f"line {frame.f_lineno}", severity=WARN)

    def _on_limits(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        mine, where = self.origins.blame(frame)
        if mine and not (event == "resource.prlimit" and (len(args) < 3 or args[2] is None)):
            self.note("global_state", "changes a resource limit", where, instead="leave limits to the harness")

    def _on_addaudithook(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        mine, where = self.origins.blame(frame)
        if mine:
            self.note("trace_hook", "adds an audit hook", where, instead="leave audit hooks to the harness")
            raise PermissionError("a candidate may not add audit hooks")


_NO_PATCH = "call the function under a name of your own and leave the library's alone"
_NO_NETWORK = "a candidate has no network: carry everything in the file"
_NETWORKS = frozenset({socket.AF_INET, socket.AF_INET6, socket.AF_PACKET})
_NO_THREADS = "do all work on the calling thread and the current stream before returning"
_NO_PROCESSES = "build extensions at import through torch.utils.cpp_extension, and start nothing in forward"


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an event without text, numbers and paths of a class of the candidate's, whose methods would run
    in here. Paths of an unknown class become None.
    """
    return tuple(
        value
        if type(value) in _KNOWN
        else str.__str__(value)
        if isinstance(value, str)
        else bytes.__getitem__(value, slice(None))
        if isinstance(value, bytes)
        else int.__int__(value)
        if isinstance(value, int)
        else None
        if hasattr(type(value), "__fspath__")
        else value
        for value in args
    )


_KNOWN = frozenset({str, bytes, int, bool, type(None), pathlib.PosixPath, pathlib.PurePosixPath})


def _text(value: Any) -> str:
    """A few words on an argument, without calling anything of its own."""
    return repr(value)[:80] if type(value) in (str, bytes, int) else f"a {type(value).__name__}"


_start_new_thread = _thread.start_new_thread


def _start_and_tell(function: Any, arguments: tuple[Any, ...], *named: Any) -> int:
    sys.audit("_thread.start_new_thread", function, arguments, *named)
    return _start_new_thread(function, arguments, *named)


def _announce_threads() -> None:
    """Python 3.11 raises no audit event when a thread starts: raise it."""
    for module, name in ((_thread, "start_new_thread"), (_thread, "start_new"), (threading, "_start_new_thread")):
        setattr(module, name, _start_and_tell)


def _is_child(pid: int) -> bool:
    try:
        handle = _open(f"/proc/{abs(pid)}/stat", os.O_RDONLY)
    except OSError:
        return False
    try:
        fields = _read(handle, 4096).rpartition(b")")[2].split()
    finally:
        _close(handle)
    return len(fields) > 1 and int(fields[1]) == _getpid()
