"""Compile a candidate's Triton kernels in several processes at once, while the candidate itself is still starting.

Only a matter of speed: what is not compiled here the candidate compiles itself, and failures here are not looked at.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from fk_core.child import wire
from fk_core.desk import Desk
from fk_core.errors import FkError
from fk_core.sandbox.launch import Child, ChildGone

log = logging.getLogger(__name__)

MOST = 8
WAIT_S = 20.0


def worthwhile(source: str, desk: Desk) -> bool:
    """Triton sources on a machine with cores to spare; extensions and compiled graphs are built once, by one process."""
    return (
        not desk.cpu
        and "triton" in source
        and not any(word in source for word in ("cpp_extension", "torch.compile", "load_inline"))
        and (os.cpu_count() or 1) >= 4
    )


class Prebuild:
    """Builders at work; :meth:`finish` waits for them, :meth:`stop` ends them."""

    def __init__(self, desk: Desk, scratch: Path, builds: list[dict[str, Any]]) -> None:
        count = max(1, min(MOST, (os.cpu_count() or 1) // 2, len(builds)))
        # Those with many shapes first, dealt out in turn, so that no process gets all the long ones.
        ordered = sorted(builds, key=lambda row: -len(row["inputs"]))
        shares = [ordered[n::count] for n in range(count)]
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=(desk, scratch, share), daemon=True) for share in shares if share
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, desk: Desk, scratch: Path, share: list[dict[str, Any]]) -> None:
        try:
            child = desk.builder(scratch)
        except FkError:
            return
        with self._lock:
            self._children.append(child)
            stopped = self._stopped
        try:
            if not stopped:
                told = child.ask({"do": "build", "calls": share}, WAIT_S).body
                if told.get("failed"):
                    log.info("ahead-of-time build: %s of %s, then %s", told.get("done"), len(share), told["failed"])
        except (ChildGone, wire.ProtocolError) as error:
            log.info("ahead-of-time build: %s", error)
        finally:
            child.kill()

    def finish(self) -> None:
        deadline = time.monotonic() + WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.stop()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            children = list(self._children)
        for child in children:
            if child.alive():
                child.kill()
        for thread in self._threads:
            thread.join(10.0)
