"""A role that tries what a level promises to prevent, to find out whether this machine really prevents it.

It answers one question, ``{"do": "probe"}``, with the list of promises that were broken. What it wrote outside is for
the asker to find: a private file system may take the writes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from fk_core.child.wire import Channel


def main(channel: Channel, config: dict[str, Any]) -> None:
    frame = channel.receive(timeout_s=30.0)
    channel.reply(frame, {"broken": broken(config)})


def broken(config: dict[str, Any]) -> list[str]:
    """``config``: ``outside`` (files to write), ``secret`` (a file to read), ``harness`` (a pid), ``signals`` (whether
    the level keeps signals in), ``level``."""
    found = []
    if not _works(lambda: _write("inside")):
        found.append("the scratch directory can't be written to")
    if not _works(lambda: _write(f"/proc/self/task/{os.getpid()}/comm")):
        found.append("threads can't be named, without which CUDA does not start")
    if config["level"] == "process":
        return found
    for path in config["outside"]:
        _works(lambda path=path: _write(path))  # type: ignore[misc]
    if _works(lambda: _read(config["secret"])):
        found.append("the harness's own files can be read")
    if _works(lambda: socket.socket(socket.AF_INET).close()):
        found.append("network sockets can be made")
    if config["signals"] and _works(lambda: os.kill(config["harness"], 0)):
        found.append("the harness can be signalled")
    if _works(lambda: _read(f"/proc/{config['harness']}/environ")):
        found.append("the harness's environment can be read")
    if not _works(_run_python):
        found.append("python can't be run from inside")
    return found


def _run_python() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True, timeout=30, capture_output=True)


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _write(path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("x")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(16)
