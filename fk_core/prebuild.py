"""Compile a candidate's Triton kernels in several processes at once, while the candidate itself is still starting.

Only a matter of speed: what is not compiled here the candidate compiles itself, and failures here are not looked at.
What was built is kept by the source's own hash, so that it serves the same source only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from fk_core.child import wire
from fk_core.desk import Desk
from fk_core.errors import FkError
from fk_core.sandbox import sweep
from fk_core.sandbox.launch import Child, ChildGone
from fk_core.sandbox.triton_cache import copy_cache

log = logging.getLogger(__name__)

MOST = 8
BUILD_S = 60.0
WAIT_S = 6.0
"""How long a candidate that is ready waits for builders; then it compiles the rest itself."""
KEPT = 256


def worthwhile(source: str, desk: Desk) -> bool:
    """Triton sources on a machine with cores to spare; extensions and compiled graphs are built once, in one go."""
    return (
        not desk.cpu
        and "triton" in source
        and not any(word in source for word in ("cpp_extension", "torch.compile", "load_inline"))
        and (os.cpu_count() or 1) >= 4
    )


class Prebuild:
    """Builders at work for the candidate whose scratch directory is given; :meth:`finish` waits for them."""

    def __init__(self, desk: Desk, source: str, scratch: Path, owner: int | None, builds: list[dict[str, Any]]) -> None:
        self.desk, self.source, self.cache, self.owner = desk, source, scratch / "triton", owner
        self.kept = _store(desk, source)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._children: list[Child] = []
        try:
            copy_cache(self.kept, self.cache, owner)
        except OSError as error:
            log.info("nothing is used of an earlier build: %s", error)
        count = max(1, min(MOST, (os.cpu_count() or 1) // 2, len(builds)))
        # Those with many shapes first, dealt out in turn, so that no process gets all the long ones.
        ordered = sorted(builds, key=lambda row: -len(row["inputs"]))
        self._threads = [
            threading.Thread(target=self._run, args=(ordered[n::count],), daemon=True) for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, share: list[dict[str, Any]]) -> None:
        try:
            self._build(share)
        except (FkError, OSError) as error:
            log.info("ahead-of-time build: %s", error)

    def _build(self, share: list[dict[str, Any]]) -> None:
        scratch = self.desk.run.scratch("build")
        try:
            copy_cache(self.kept, scratch / "triton")
            self._build_in(scratch, share)
        finally:
            sweep.remove(scratch)

    def _build_in(self, scratch: Path, share: list[dict[str, Any]]) -> None:
        child = self.desk.builder(self.source, scratch)
        with self._lock:
            self._children.append(child)
        if self._stop.is_set():
            child.kill()
        try:
            told = child.ask({"do": "build", "calls": share}, BUILD_S).body
            if told.get("failed"):
                log.info("ahead-of-time build: %s of %s, then %s", told.get("done"), len(share), told["failed"])
        except (ChildGone, wire.ProtocolError) as error:
            log.info("ahead-of-time build: %s", error)
        finally:
            child.kill()
            with self._lock:
                self._children.remove(child)
            if not self._stop.is_set():
                copy_cache(scratch / "triton", self.cache, self.owner)

    def finish(self, cancel: threading.Event) -> None:
        """Wait a while until all have built, and keep what they built for the next run of the same source."""
        deadline = time.monotonic() + WAIT_S
        while self._building() and time.monotonic() < deadline and not cancel.is_set():
            next(t for t in self._threads if t.is_alive()).join(0.05)
        if not self._building():
            _keep(self.cache, self.kept)
        self.stop()

    def _building(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End those that still build."""
        self._stop.set()
        with self._lock:
            late = list(self._children)
        for child in late:
            child.kill()


def _store(desk: Desk, source: str) -> Path:
    parts = [source, metadata.version("triton"), desk.device.compute_capability]
    name = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
    return desk.settings.cache_dir / "builds" / name


def _keep(cache: Path, kept: Path) -> None:
    """Put what was built away, file by file; the oldest builds go when there are many."""
    try:
        copy_cache(cache, kept)
        builds = sorted((p for p in kept.parent.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
        for old in builds[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        log.info("a build could not be kept: %s", error)
