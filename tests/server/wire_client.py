"""The smallest client there is: JSON lines over pipes, so that tests see every byte of the wire."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def scrubbed_environment(home: Path) -> dict[str, str]:
    """What the strictest client passes on, and the path of the checkout."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(REPOSITORY)}


class WireClient:
    """A server process and its two pipes."""

    def __init__(self, home: Path, *, command: list[str] | None = None) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command or [sys.executable, "-P", "-m", "tests.server.serve_fake", str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=scrubbed_environment(home),
            cwd=REPOSITORY,
            start_new_session=True,
        )
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.seen: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line)
            self.lines.put(line)
        self.lines.put(None)

    def send(self, message: dict[str, Any] | str) -> None:
        assert self.process.stdin is not None
        text = message if isinstance(message, str) else json.dumps(message)
        self.process.stdin.write(text.encode("utf-8") + b"\n")
        self.process.stdin.flush()

    def request(self, number: int | str, method: str, params: dict[str, Any] | None = None) -> None:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})

    def answer(self, number: int | str, timeout_s: float = 20.0) -> dict[str, Any]:
        """The answer to one request; every line on the way must be JSON."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, "the server closed its output"
            message = json.loads(line, parse_constant=_refuse)
            if message.get("id") == number and "method" not in message:
                return dict(message)

    def initialize(self) -> None:
        client = {"name": "wire", "version": "1"}
        self.request("init", "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self.answer("init")
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, number: int, tool: str, arguments: dict[str, Any], **meta: Any) -> None:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if meta:
            params["_meta"] = meta
        self.request(number, "tools/call", params)

    def exit_code(self, timeout_s: float = 10.0) -> int:
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        os.kill(pid, 0)
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_for(condition: Any, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())
