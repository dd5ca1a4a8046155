"""Start one role in a process of its own, confined as asked, and talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import threading
from pathlib import Path
from typing import Any

from fk_core.child import confine, wire
from fk_core.errors import HarnessError, ZygoteDied
from fk_core.sandbox import environ, exposure, triton_stubs
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Limits, Settings

_START_S = 60.0
_SEND_S = 30
_KILL_S = 3.0


class ChildGone(Exception):
    """The child can't answer any more.

    ``exit_status``: such as ``exit 1`` or ``signal 11 (SIGSEGV)``; ``over_limit``: the limit it ran into, or None.
    """

    def __init__(self, reason: str, exit_status: str, log_tail: str, over_limit: str | None) -> None:
        super().__init__(f"{reason}: {exit_status}" + (f" (over the limit on {over_limit})" if over_limit else ""))
        self.reason, self.exit_status, self.log_tail, self.over_limit = reason, exit_status, log_tail, over_limit


class Child:
    """A running role. One thread at a time may ask; any may kill."""

    def __init__(self, zygote: Zygote, role: str, level: str | None, limits: Limits) -> None:
        self.role, self.level, self.pid, self.uid = role, level, 0, None
        self.run = 0
        self.keeper = 0
        self.usage: dict[str, Any] = {}
        self.output_bytes = 0
        self._zygote, self._limits = zygote, limits
        self._head, self._tail = bytearray(), bytearray()
        self._exit: dict[str, Any] | None = None
        self._limit: str | None = None
        self._failed = ""
        self._lock = threading.Lock()
        self._line_lock = threading.Lock()
        """For closing the line and for sending to it from another thread than the one that reads it."""
        self._started, self._gone = threading.Event(), threading.Event()
        ours, self._theirs = wire.pair()
        # A child that does not read must not block the harness for ever.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        self.channel = wire.Channel(ours)
        self._line, self._keeper_line = wire.pair()
        self._log, self._log_write = os.pipe()

    def start(self, plan: dict[str, Any], config: dict[str, Any]) -> None:
        fds = (self._theirs.fileno(), self._log_write, self._keeper_line.fileno())
        try:
            self.run, self.keeper = self._zygote.spawn(plan, config, fds)
        except BaseException:
            self._close_theirs()
            self.channel.close()
            self._line.close()
            os.close(self._log)
            self._gone.set()
            raise
        self._close_theirs()
        threading.Thread(target=self._watch, name=f"fk-{self.role}", daemon=True).start()
        if not self._started.wait(_START_S):
            self.kill()
            raise HarnessError(f"the {self.role} did not start within {_START_S:.0f} s")
        if not self.pid:
            self.kill()
            if not self._zygote.alive():
                raise ZygoteDied(f"the zygote ended while it started the {self.role}")
            why = self._failed or f"its keeper ended; {self._zygote.log_tail()[-500:]}"
            raise HarnessError(f"the {self.role} could not be started at level {self.level}: {why}")

    def ask(self, body: dict[str, Any], timeout_s: float, fds: tuple[int, ...] = ()) -> wire.Frame:
        """Ask and wait for the one answer. Raises ``ChildGone``, ``wire.TimedOut`` or ``wire.ProtocolError``."""
        try:
            return self.channel.ask(body, timeout_s=timeout_s, fds=fds)
        except wire.Closed as error:
            if not self._gone.wait(2.0):
                raise ChildGone("the process closed its channel", self.exit_status, self.log_tail(), None) from error
            raise self.gone("the process ended") from error

    def gone(self, reason: str) -> ChildGone:
        return ChildGone(reason, self.exit_status, self.log_tail(), self.over_limit)

    def alive(self) -> bool:
        return not self._gone.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it and its whole tree ended within the time."""
        return self._gone.wait(timeout_s)

    @property
    def exit_status(self) -> str:
        """How the role ended: ``exit 0``, ``signal 9 (SIGKILL)``, ``killed by the harness`` or ``running``."""
        if self._exit is None:
            return "unknown" if self._gone.is_set() else "running"
        if not self._exit["by_itself"]:
            return "killed by the harness"
        status = int(self._exit["status"])
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return f"signal {number} ({_signal_name(number)})"
        return f"exit {os.waitstatus_to_exitcode(status)}"

    @property
    def over_limit(self) -> str | None:
        """``memory``, ``cpu time``, ``processes``, ``file size`` or ``output`` when that is why it ended."""
        return self._limit or (self._exit or {}).get("limit")

    def log_tail(self) -> str:
        """What it wrote, at most ``limits.log_bytes``: the beginning and the end when there was more."""
        with self._lock:
            left_out = self.output_bytes - len(self._head) - len(self._tail)
            middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out > 0 else b""
            return (bytes(self._head) + middle + bytes(self._tail)).decode("utf-8", "replace")

    def kill(self) -> None:
        """End the whole tree, whatever left its session or was orphaned; returns when all are gone.

        A thread that waits for an answer meanwhile is woken.
        """
        self._tell_keeper()
        if not self._gone.wait(_KILL_S):
            # The keeper was stopped or hangs: the zygote ends it and what it kept.
            with contextlib.suppress(ZygoteDied):
                self._zygote.kill(self.run)
            self._gone.wait(10.0)
        self.channel.close()

    def _watch(self) -> None:
        """Read the log and the keeper's line until both close, which they do when every process of the tree is gone."""
        pending = bytearray()
        poll = select.poll()
        for fd in (self._log, self._line.fileno()):
            poll.register(fd, select.POLLIN)
        open_fds = {self._log, self._line.fileno()}
        while open_fds:
            for fd, _ in poll.poll(1000):
                data = _read(fd)
                if not data:
                    poll.unregister(fd)
                    open_fds.discard(fd)
                elif fd == self._log:
                    self._keep_output(data)
                else:
                    pending += data
                    *lines, rest = bytes(pending).split(b"\n")
                    pending = bytearray(rest)
                    for line in lines:
                        self._hear(json.loads(line))
            if self._line.fileno() not in open_fds and not self._started.is_set():
                self._started.set()
        os.close(self._log)
        with self._line_lock:
            self._line.close()
        self._gone.set()
        self._started.set()

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self.pid, self.uid = event["pid"], event["uid"]
            self._started.set()
        elif event["event"] == "failed":
            self._failed = event["why"]
            self._started.set()
        else:
            self._exit = event
            self.usage = {key: event[key] for key in ("cpu_s", "peak_bytes", "all_gone")}

    def _keep_output(self, data: bytes) -> None:
        half = self._limits.log_bytes // 2
        with self._lock:
            self.output_bytes += len(data)
            room = half - len(self._head)
            self._head += data[:room] if room > 0 else b""
            self._tail += data[max(0, room) :]
            if len(self._tail) > half:
                del self._tail[: len(self._tail) - half]
        if self.output_bytes > self._limits.output_bytes and self._limit is None:
            self._limit = "output"
            self._tell_keeper()

    def _tell_keeper(self) -> None:
        """To end what it keeps. Closed already, the line has no number that could be another file's."""
        with self._line_lock, contextlib.suppress(OSError):
            self._line.send(b"kill\n")

    def _close_theirs(self) -> None:
        self._theirs.close()
        self._keeper_line.close()
        os.close(self._log_write)


def launch(
    zygote: Zygote,
    role: str,
    config: dict[str, Any],
    settings: Settings,
    *,
    level: str | None,
    scratch: Path | None,
    cpu: bool,
    read_only: tuple[Path, ...] = (),
    hide: tuple[Path, ...] = (),
    env: dict[str, str] | None = None,
) -> Child:
    """Fork ``role`` from the zygote and wait until it is confined.

    ``level`` None is for trusted roles. Otherwise ``scratch`` is the one directory it may write to; it is given to the
    role's own user where that is another one. ``read_only``: further paths it needs. ``hide``: paths it must not see,
    besides the harness's home and locks. ``env``: further variables. ``config`` goes to the role's ``main``.
    """
    plan = _plan(zygote, role, settings, level=level, scratch=scratch, cpu=cpu, read_only=read_only, hide=hide)
    plan["env"] |= env or {}
    child = Child(zygote, role, level, settings.limits)
    child.start(plan, config)
    return child


def _plan(
    zygote: Zygote,
    role: str,
    settings: Settings,
    *,
    level: str | None,
    scratch: Path | None,
    cpu: bool,
    read_only: tuple[Path, ...],
    hide: tuple[Path, ...],
) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "role": role,
        "module": zygote.roles.get(role, f"fk_core.child.{role}"),
        "level": level,
        "trusted": level is None,
        "uid": None,
        "groups": [],
        "change_uid": False,
        "rlimits": {"core": 0},
        "memory_bytes": None,
        "processes": None,
        "view": {"writable": []},
        "cwd": "/",
    }
    if level is None:
        plan["env"] = environ.of_trusted(settings, marker=zygote.marker, interpret=zygote.interpret)
        return plan
    if scratch is None:
        raise HarnessError(f"the {role} is confined and has no scratch directory")
    (scratch / "tmp").mkdir(exist_ok=True)
    triton_stubs.seed(settings, scratch / "triton")
    limits = settings.limits
    plan |= {
        "env": environ.of_confined(scratch, marker=zygote.marker, interpret=zygote.interpret),
        "view": exposure.view(settings, scratch, zygote.search_path, read_only, hide),
        "memory_bytes": limits.memory_bytes,
        "processes": limits.processes,
        "cwd": str(scratch),
    }
    if os.geteuid() == 0:
        rebuilt = level == confine.NAMESPACES
        plan["change_uid"] = exposure.readable_by_others(zygote.search_path, rebuilt=rebuilt) and (
            rebuilt or _reachable_by_others(scratch)
        )
        plan["groups"] = exposure.device_groups()
    plan["rlimits"] = {
        "core": 0,
        "cpu": int(limits.cpu_s),
        "fsize": limits.file_bytes,
        "nofile": limits.open_files,
        "nproc": limits.processes,
    }
    if cpu:  # CUDA reserves far more address space than it uses; there only what is resident is watched
        plan["rlimits"]["as"] = limits.memory_bytes
    return plan


def _reachable_by_others(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
