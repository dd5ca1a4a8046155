"""Compile a candidate's Triton kernels in several processes at once, while the candidate itself is still starting.

Only a matter of speed: what is not compiled here the candidate compiles itself, and failures here are not looked at.
What was built is kept by the source's own hash, so that it serves the same source only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
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

log = logging.getLogger(__name__)

MOST = 8
BUILD_S = 60.0
WAIT_S = 6.0
"""How long a candidate that is ready waits for builders; then it compiles the rest itself."""
KEPT = 256
_FILE_BYTES = 64 << 20


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
        copy_cache(self.kept, self.cache, owner)
        count = max(1, min(MOST, (os.cpu_count() or 1) // 2, len(builds)))
        # Those with many shapes first, dealt out in turn, so that no process gets all the long ones.
        ordered = sorted(builds, key=lambda row: -len(row["inputs"]))
        self._threads = [
            threading.Thread(target=self._run, args=(ordered[n::count],), daemon=True) for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, share: list[dict[str, Any]]) -> None:
        scratch = self.desk.run.scratch("build")
        copy_cache(self.kept, scratch / "triton")
        try:
            child = self.desk.builder(self.source, scratch)
        except FkError as error:
            log.info("ahead-of-time build: %s", error)
            sweep.remove(scratch)
            return
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
            sweep.remove(scratch)

    def finish(self) -> None:
        """Wait until all have built, and keep what they built for the next run of the same source."""
        deadline = time.monotonic() + WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._threads and not any(t.is_alive() for t in self._threads):
            _keep(self.cache, self.kept)
        self._stop.set()
        with self._lock:
            late = list(self._children)
        for child in late:
            child.kill()


def copy_cache(source: Path, target: Path, owner: int | None = None) -> int:
    """Copy the plain files of a Triton cache, one directory deep; what is there already stays. Gives how many.

    ``source`` may have been written by anyone: links and special files are left out, sizes are bounded. ``owner``: the
    uid that gets what is new, so that it can add to it.
    """
    count = 0
    if source.is_symlink() or not source.is_dir():
        return count
    for folder in source.iterdir():
        if folder.is_symlink() or not folder.is_dir():
            continue
        there = target / folder.name
        there.mkdir(parents=True, exist_ok=True)
        _give(there, owner)
        for file in folder.iterdir():
            if not (there / file.name).exists():
                count += _copy_file(file, there / file.name, owner)
    return count


def _copy_file(source: Path, target: Path, owner: int | None) -> int:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    with os.fdopen(fd, "rb") as reader:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _FILE_BYTES:
            return 0
        data = reader.read(_FILE_BYTES + 1)
    if source.name.startswith("__grp__"):
        # Triton's list of the files of one kernel names them by full path.
        try:
            paths = json.loads(data)["child_paths"]
            data = json.dumps(
                {"child_paths": {n: str(target.parent / Path(p).name) for n, p in paths.items()}}
            ).encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            return 0
    # Whole or not at all: others may be reading here.
    part = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    part.write_bytes(data)
    part.chmod(0o644)
    _give(part, owner)
    part.replace(target)
    return 1


def _give(path: Path, owner: int | None) -> None:
    if owner is not None and os.geteuid() == 0:
        os.chown(path, owner, owner, follow_symlinks=False)


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
