"""Running code in a role, and looking at this machine's processes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fk_core.sandbox.launch import Child

Start = Callable[..., Child]

ROLES = {"candidate": "tests.sandbox.role", "judge": "tests.sandbox.role"}
PRELOAD = ("tests.sandbox.role",)
"""Imported by the zygote: once confined, a role can't see the tests."""


def say(text: str) -> None:
    """Show a measured figure with ``pytest -s``."""
    sys.stdout.write(f"\n{text}\n")


def run(child: Child, code: str, timeout_s: float = 30.0) -> Any:
    """What the code left in ``out``; an exception in there is one here, with its text."""
    body = child.ask({"code": code}, timeout_s=timeout_s).body
    if "error" in body:
        raise RuntimeError(body["error"])
    return body["out"]


def refused(child: Child, code: str) -> str:
    """The exception that the code ended with."""
    body = child.ask({"code": code}, timeout_s=30.0).body
    assert "error" in body, f"was not refused: {code}"
    return str(body["error"])


def processes_with(word: str) -> list[int]:
    """Processes, zombies aside, that have a word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if word.encode() in words:
                    found.append(int(name))
    return found


def gone_within(condition: Callable[[], Any], timeout_s: float = 2.0) -> bool:
    """Whether a condition became false in time."""
    deadline = time.monotonic() + timeout_s
    while condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
