"""The harness's end of the zygote (``fk_core.child.zygote_main``): start it, have it fork, notice its death."""

from __future__ import annotations

import collections
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fk_core
from fk_core import rights
from fk_core.child import wire
from fk_core.errors import ZygoteDied
from fk_core.sandbox import environ, sweep
from fk_core.settings import Settings

_BOOTSTRAP = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from fk_core.child.zygote_main import main; main(int(sys.argv[1]))"
)
_ASK_S = 20.0
_LOG_LINES = 200


class Zygote:
    """A warm parent of roles. Thread-safe. It ends when closed, or when this process ends in whatever way.

    ``interpret``: run Triton's interpreter (no GPU). ``preload``: what to import once for all roles. ``roles``: modules
    of roles other than ``fk_core.child.NAME``. ``target``: compute capability, such as 90, to warm the compiler for.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        interpret: bool,
        preload: tuple[str, ...] = ("torch", "triton"),
        roles: dict[str, str] | None = None,
        target: int | None = None,
    ) -> None:
        self.settings, self.interpret, self.preload, self.target = settings, interpret, preload, target
        self.roles = dict(roles or {})
        self.search_path = search_path()
        self.marker = sweep.marker()
        self.pid = 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._channel: wire.Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._log: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._failure: Exception | None = None

    def start(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Start it and wait until it is warm. Give the versions it imported and the ``seconds`` that took."""
        rights.directory(self.settings.home)
        rights.directory(self.settings.cache_dir)
        ours, theirs = wire.pair()
        # The zygote asks to die with the thread that started it, so that thread must live as long as the zygote may.
        threading.Thread(target=self._run, args=(theirs,), name="fk-zygote", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            ours.close()
            raise ZygoteDied(f"the zygote did not start: {self._failure}") from self._failure
        self._channel = wire.Channel(ours)
        start = {"preload": list(self.preload), "interpret": self.interpret, "target": self.target}
        frame = self._ask(start, timeout_s=timeout_s)
        self.pid = int(frame.body["pid"])
        return frame.body

    def alive(self) -> bool:
        return self._channel is not None and not self._ended.is_set()

    def close(self) -> None:
        """End it and all that it started; returns when it is gone."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
                self._channel = None
        if self._process is not None and not self._ended.wait(10.0):
            self._process.kill()
            self._ended.wait(5.0)

    def spawn(self, plan: dict[str, Any], config: dict[str, Any], fds: tuple[int, int, int]) -> tuple[int, int]:
        """Fork a keeper for one role; give the number of the run and the keeper's pid."""
        run = next(self._numbers)
        frame = self._ask({"do": "spawn", "run": run, "plan": plan, "config": config}, timeout_s=_ASK_S, fds=fds)
        return run, int(frame.body["keeper"])

    def kill(self, run: int) -> bool:
        """Kill the keeper of a run; the zygote then ends what it kept. False when that keeper is gone already."""
        return bool(self._ask({"do": "kill", "run": run}, timeout_s=_ASK_S).body["killed"])

    def log_tail(self) -> str:
        return "\n".join(self._log)

    def _ask(self, body: dict[str, Any], *, timeout_s: float, fds: tuple[int, ...] = ()) -> wire.Frame:
        with self._lock:
            if self._channel is None:
                raise ZygoteDied("the zygote is not running")
            try:
                frame = self._channel.ask(body, timeout_s=timeout_s, fds=fds)
            except wire.ProtocolError as error:
                # Out of step with it, or without it: either way no further question can be asked.
                self._channel.close()
                self._channel = None
                ended = self._ended.wait(2.0) and self._process is not None
                how = f"with status {self._process.returncode}" if ended and self._process else "or hangs"
                raise ZygoteDied(f"the zygote is gone ({error}), {how}", hint=self.log_tail()[-2000:]) from error
        if frame.kind == wire.ERROR:
            raise ZygoteDied(f"the zygote failed: {frame.body.get('error')}", hint=self.log_tail()[-2000:])
        return frame

    def _run(self, control: socket.socket) -> None:
        """Start the process, keep the end of its output, wait for its end, and sweep up what it may have left."""
        with control:
            command = [
                sys.executable,
                "-I",
                "-B",
                "-c",
                _BOOTSTRAP,
                str(control.fileno()),
                json.dumps(self.search_path),
            ]
            env = environ.of_trusted(self.settings, marker=self.marker, interpret=self.interpret)
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=env,
                    pass_fds=(control.fileno(),),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                self._failure = error
                self._ended.set()
                self._started.set()
                return
        self._started.set()
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in iter(lambda: output.readline(8192), b""):
                self._log.append(line.decode("utf-8", "replace").rstrip())
        self._process.wait()
        sweep.kill_marked(self.marker)
        self._ended.set()


def search_path() -> tuple[str, ...]:
    """Where children import from: this process's own path, without the working directory."""
    root = str(Path(fk_core.__file__).resolve().parent.parent)
    entries = [entry for entry in sys.path if entry and os.path.isabs(entry) and os.path.exists(entry)]
    return tuple(dict.fromkeys([*entries, root]))
