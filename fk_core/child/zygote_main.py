"""The zygote: a warm process that has imported torch and triton, and forks one keeper for every role.

It stays at one thread, runs no tensor operation and never initialises CUDA, so that its forks are safe: a parent that
has run a multi-threaded operation leaves every child hanging in its first one. It holds no secrets; its environment
was allow-listed by whoever started it. It ends when its channel closes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from fk_core.child import keeper, processes, syscalls
from fk_core.child.wire import Channel, Closed, Frame

_GRACE_S = 3.0


def main(control: int) -> NoReturn:
    """Serve on a connected socket until the other side closes it."""
    channel = Channel(socket.socket(fileno=control))
    syscalls.set_parent_death_signal(signal.SIGKILL)
    syscalls.set_name("fk-zygote")
    # Of every role, whatever the harness was started with: compilers and caches count on it.
    os.umask(0o022)
    try:
        first = channel.receive(timeout_s=60.0)
        began = time.perf_counter()
        try:
            versions = _preload(first.body)
        except Exception as error:  # noqa: BLE001 - whatever the imports raise is the answer
            channel.reply(first, {"error": f"{type(error).__name__}: {error}"}, error=True)
            os._exit(1)
        channel.reply(first, versions | {"seconds": round(time.perf_counter() - began, 3)})
        Zygote(channel).serve()
    except Closed:
        pass
    os._exit(0)


class Zygote:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.keepers: dict[int, int] = {}  # number of the run -> pid of its keeper
        self.lifeline_read, self.lifeline = os.pipe()
        syscalls.set_subreaper()
        syscalls.set_dumpable(False)
        self.wake_read, self.wake = os.pipe()
        for fd in (self.wake_read, self.wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        control = self.channel.fileno()
        try:
            while True:
                ready = select.select([control, self.wake_read], [], [])[0]
                if self.wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_read, 4096)
                    self._reap()
                if control in ready:
                    self._answer(self.channel.receive(timeout_s=10.0))
        finally:
            self._end_all()

    def _answer(self, frame: Frame) -> None:
        body, do = frame.body, frame.body.get("do")
        if do == "spawn":
            try:
                pid = self._fork(body["plan"], body["config"], frame.fds)
            except OSError as error:
                self.channel.reply(frame, {"error": f"it could not fork: {error}"}, error=True)
                return
            self.keepers[body["run"]] = pid
            self.channel.reply(frame, {"keeper": pid})
        elif do == "kill":
            pid = self.keepers.get(body["run"], 0)
            if pid:
                os.kill(pid, signal.SIGKILL)
            self.channel.reply(frame, {"killed": bool(pid)})
        elif do == "runs":
            self.channel.reply(frame, {"keepers": sorted(self.keepers.values())})
        else:
            self.channel.reply(frame, {"error": f"the zygote knows no {do!r}"}, error=True)

    def _fork(self, plan: dict[str, Any], config: dict[str, Any], fds: list[int]) -> int:
        role, log, harness = fds
        try:
            pid = os.fork()
            if pid == 0:
                # The descriptors are closed in there by number; let no object close a reused number later.
                self.channel.sock.detach()
                keeper.keep(plan, config, role, log, harness, self.lifeline_read)
        finally:
            for fd in fds:
                os.close(fd)
        return pid

    def _reap(self) -> None:
        """Collect dead keepers. One that was killed leaves its role to this process: end that too."""
        by_pid = {pid: run for run, pid in self.keepers.items()}
        killed = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            killed = killed or status != 0
            self.keepers.pop(by_pid.get(pid, -1), None)
        if killed:
            processes.kill_descendants(spare=frozenset(self.keepers.values()))

    def _end_all(self) -> None:
        os.close(self.lifeline)  # every keeper sees this and ends its tree
        deadline = time.monotonic() + _GRACE_S
        while self.keepers and time.monotonic() < deadline:
            select.select([self.wake_read], [], [], 0.05)
            self._reap()
        processes.kill_descendants()


def _preload(start: dict[str, Any]) -> dict[str, Any]:
    """Import what every role would import, and warm the compiler where a GPU target is named."""
    versions: dict[str, Any] = {"python": sys.version.split()[0], "pid": os.getpid()}
    answered: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if "torch" in start["preload"]:
        import torch

        torch.set_num_threads(1)
        versions |= {"torch": torch.__version__, "cuda": torch.version.cuda}
        answered = _answered(torch.cuda, gpu=bool(start["target"]))
    with answered:
        _preload_rest(start, versions)
    gc.collect()
    return versions | {"threads": processes.thread_names(os.getpid())}


def _preload_rest(start: dict[str, Any], versions: dict[str, Any]) -> None:
    if "triton" in start["preload"]:
        triton = importlib.import_module("triton")
        importlib.import_module("triton.language")
        versions["triton"] = triton.__version__
        if start["interpret"]:
            importlib.import_module("fk_core.child.interpreter").install()
        elif start["target"]:
            warm = importlib.import_module("fk_core.child.warm_compile")
            warm.compile_one(start["target"])
            warm.ask_tools()
            importlib.import_module("fk_core.child.kernels").prepare(start["target"])
        # All that a candidate's process runs of ours; the trusted side is imported after the fork, where it belongs.
        importlib.import_module("fk_core.child.candidate")
    for name in start["preload"]:
        importlib.import_module(name)


@contextlib.contextmanager
def _answered(cuda: Any, *, gpu: bool) -> Iterator[None]:
    """Whether there is a GPU is known, so that no module need ask while it is imported.

    Asking starts a thread of the driver's here, and leaves its management library useless in every fork: its
    descriptors are closed there (seen on an H200: ``torch.utils.benchmark`` of torch 2.11 asks; in all roles NVML then
    fails, and with it torch's report of an exhausted memory).
    """
    asked = cuda.is_available
    cuda.is_available = lambda: gpu
    try:
        yield
    finally:
        cuda.is_available = asked


def _nothing(number: int, frame: object) -> None:
    """A handler, so that the signal wakes the loop."""
