"""The keeper: one small trusted process between the zygote and each role. It outlives the role and nothing else.

    zygote ── keeper ── role                          levels landlock+seccomp, process, and trusted roles
    zygote ── keeper ── init (pid 1) ── role          level namespaces

The keeper ends the whole tree when the harness says so or is gone, when the zygote is gone, when the role has ended or
uses more memory than it may. As a subreaper (or through the pid namespace) it reaches what left the session or was
orphaned. It talks to the harness in JSON lines: ``started``, ``failed`` and ``ended``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any, NoReturn

from fk_core.child import confine, mounts, processes, syscalls
from fk_core.child.wire import Channel

_TICK_S = 0.5


def keep(plan: dict[str, Any], config: dict[str, Any], role: int, log: int, harness: int, zygote: int) -> NoReturn:
    """Run a role and stay until its whole tree is gone. Descriptors: the role's channel, its log, the line to the
    harness, and a pipe whose other end only the zygote holds."""
    code = 1
    try:
        os.setsid()
        syscalls.set_name("fk-keeper")
        _keep_open({role, log, harness, zygote})
        _default_signals()
        Keeper(plan, config, harness, zygote).run(role, log)
        code = 0
    except BaseException:  # noqa: BLE001 - a forked process must never run its parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


class Keeper:
    def __init__(self, plan: dict[str, Any], config: dict[str, Any], harness: int, zygote: int) -> None:
        self.plan, self.config, self.zygote = plan, config, zygote
        self.harness = socket.socket(fileno=harness)
        self.limit: str | None = None
        self.own_bytes = processes.private_bytes(os.getpid())

    def run(self, role: int, log: int) -> None:
        plan = self.plan
        if plan["change_uid"]:
            plan["uid"] = confine.own_uid(os.getpid())
            for path in plan["view"]["writable"]:
                _give(path, plan["uid"])
        if "nproc" in plan["rlimits"] and plan["uid"] is None and plan["level"] != confine.NAMESPACES:
            plan["rlimits"]["nproc"] += processes.threads_of_user(os.getuid())
        keeper = os.getpid()
        ready_read, ready = os.pipe()
        ended_read, ended = os.pipe()
        if plan["level"] == confine.NAMESPACES:
            try:
                _new_pid_namespace()
            except OSError as error:
                self._tell({"event": "failed", "why": str(error)})
                return
            child = os.fork()
            if child == 0:
                _run_init(self, role, log, ready, ended, (ready_read, ended_read))
        else:
            syscalls.set_subreaper()
            child = os.fork()
            if child == 0:
                _become_role(plan, self.config, role, log, ready, keeper)
        syscalls.set_dumpable(False)
        for fd in (role, log, ready, ended):
            os.close(fd)
        self._watch(child, ready_read, ended_read)

    def _watch(self, child: int, ready: int, ended: int) -> None:
        handle = os.pidfd_open(child)
        poll = select.poll()
        for fd in (ready, handle, self.zygote, self.harness.fileno()):
            poll.register(fd, select.POLLIN)
        why = ""
        while not why:
            for fd, _ in poll.poll(_TICK_S * 1000):
                if fd == ready:
                    poll.unregister(ready)
                    self._report_start(child, os.read(ready, 4096))
                elif fd == handle:
                    why = "ended"
                else:
                    why = why or "told to end"
            if not why:
                self.limit = self._over_limit(child)
                why = f"over {self.limit}" if self.limit else ""
        self._finish(child, ended, why)

    def _report_start(self, child: int, said: bytes) -> None:
        if said != b"ok":
            self._tell({"event": "failed", "why": said.decode("utf-8", "replace") or "died while being confined"})
            return
        pid = child
        if self.plan["level"] == confine.NAMESPACES:
            pid = (processes.children(child) or [child])[0]
        self._tell({"event": "started", "pid": pid, "uid": self.plan["uid"]})

    def _finish(self, child: int, ended: int, why: str) -> None:
        """End what is left, and say how the role ended."""
        namespaced = self.plan["level"] == confine.NAMESPACES
        if why != "ended":
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)  # of a pid namespace's init: returns when all in it are gone
        own_end = why == "ended"
        if namespaced:
            said = os.read(ended, 64)
            own_end = own_end and bool(said)
            if said:
                status = int(said.split()[0])
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        elif self.plan["uid"] is not None and self.plan["uid"] >= confine.OWN_UIDS:
            processes.kill_user(self.plan["uid"])
        gone = True
        if not namespaced:
            gone = processes.kill_descendants()
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = usage.ru_utime + usage.ru_stime
        if own_end and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            allowed = self.plan["rlimits"].get("cpu")
            if number == signal.SIGXCPU or (number == signal.SIGKILL and allowed and cpu_s >= allowed):
                self.limit = "cpu time"
            elif number == signal.SIGXFSZ:
                self.limit = "file size"
        body = {"event": "ended", "status": status, "limit": self.limit, "by_itself": own_end, "all_gone": gone}
        self._tell(body | {"cpu_s": round(cpu_s, 3), "peak_bytes": usage.ru_maxrss * 1024})

    def _over_limit(self, child: int) -> str | None:
        """The limit that the whole tree exceeds: rlimits hold single processes, and root not at all to a number."""
        memory, count = self.plan["memory_bytes"], self.plan["processes"]
        if memory is None:
            return None
        tree = [child, *processes.descendants(child)]
        if len(tree) > count + 2:
            return "processes"
        # Pages that were shared with the zygote at the fork count for every process: take them off.
        private = sum(max(0, processes.private_bytes(pid) - self.own_bytes) for pid in tree)
        return "memory" if private + processes.shared_bytes(tree) > memory else None

    def _tell(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.harness.sendall(json.dumps(body).encode() + b"\n")


def _run_init(keeper: Keeper, role: int, log: int, ready: int, ended: int, unused: tuple[int, ...]) -> NoReturn:
    """Process 1 of the namespace: makes the view, starts the role, collects orphans. Holds nothing of the role's."""
    try:
        os.setsid()
        syscalls.set_name("fk-init")
        # Ends with the keeper. Its own death ends all in the namespace; in there nobody can signal it.
        syscalls.set_parent_death_signal(signal.SIGKILL)
        for fd in (keeper.harness.detach(), keeper.zygote, *unused):
            os.close(fd)
        poll = select.poll()
        poll.register(ended, 0)
        if poll.poll(0):  # the keeper, the only reader, died before the signal was asked for
            os._exit(1)
        flags = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
        try:
            syscalls.unshare(flags)
            mounts.build(keeper.plan["view"])
        except OSError as error:
            os.write(ready, str(error).encode())
            os._exit(1)
        child = os.fork()
        if child == 0:
            _become_role(keeper.plan, keeper.config, role, log, ready, 1)
        syscalls.set_dumpable(False)
        for fd in (role, log, ready):
            os.close(fd)
        while True:
            pid, status = os.wait()
            if pid == child:
                os.write(ended, f"{status} ".encode())
                os._exit(0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(1)


def _become_role(
    plan: dict[str, Any], config: dict[str, Any], role: int, log: int, ready: int, parent: int
) -> NoReturn:
    """Give up what the plan says, then run the role's ``main`` and end."""
    code = 1
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        _keep_open({role, ready})
        syscalls.set_name(f"fk-{plan['role']}")
        os.environ.clear()
        os.environ.update(plan["env"])
        tempfile.tempdir = None
        try:
            os.chdir(plan["cwd"])
            confine.confine(plan, keeper=parent)
        except OSError as error:
            os.write(ready, str(error).encode())
            os._exit(1)
        os.write(ready, b"ok")
        os.close(ready)
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        module = importlib.import_module(plan["module"])
        module.main(Channel(socket.socket(fileno=role)), config)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _new_pid_namespace() -> None:
    """Children of this process become process 1 of a new pid namespace; without root, in a new user namespace too."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        return
    syscalls.set_dumpable(True)  # an undumpable process can't write its own maps
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWPID)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _give(path: str, uid: int) -> None:
    """Make a directory and all in it another user's. Links are changed, never followed."""
    os.chown(path, uid, uid, follow_symlinks=False)
    for folder, names, files, at in os.fwalk(path, follow_symlinks=False):
        del folder
        for name in names + files:
            os.chown(name, uid, uid, dir_fd=at, follow_symlinks=False)


def _keep_open(wanted: set[int]) -> None:
    """Close every descriptor but the standard three and the wanted ones."""
    highest = 2
    for fd in sorted(wanted):
        os.closerange(highest + 1, fd)
        highest = fd
    os.closerange(highest + 1, 1 << 20)


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
