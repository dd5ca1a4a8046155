"""Compile a candidate's Triton kernels in several processes at once, while the candidate itself is still starting.

Only a matter of speed: what is not compiled here the candidate compiles itself, and failures here are not looked at.
What was built is kept by the source's own hash, so that it serves the same source only, together with a list of the
inputs it was built for: a later run builds for new ones only.

Kept is what builders leave, who call the candidate's code on tensors that nobody has written to and get no inputs. The
candidate's own cache is not: it may hold what the candidate noted of this run's inputs.
"""

from __future__ import annotations

import collections
import hashlib
import json
import logging
import os
import secrets
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from fk_core.child import wire
from fk_core.desk import Desk
from fk_core.errors import FkError
from fk_core.launcher_stock import MOST_SIGNATURES, Signature, read_claim
from fk_core.sandbox import trees
from fk_core.sandbox.launch import Child, ChildGone
from fk_core.sandbox.triton_cache import copy_cache

log = logging.getLogger(__name__)

MOST = 16
"""Builders. One for each row is fastest: 16 with one row each take hardly longer than 8."""
BUILD_S = 60.0
"""For one row."""
WAIT_S = 6.0
"""How long a candidate that is ready waits for builders, all in all; then it compiles the rest itself."""
KEPT = 256
_MOST_BYTES = 64 << 20
"""Of what one builder may leave: a kernel with its stages takes some hundred KB."""
_LAYOUT = "2"
"""Part of the name of what is kept: what was kept in another way is not used, and goes in time."""
_SLICE_S, _END_S = 0.05, 2.0
_LAUNCHES = 4
"""Builders that start at a time: those of the cases' rows come first, and don't wait until a dozen have started."""


def worthwhile(source: str, desk: Desk) -> bool:
    """Triton sources on a machine with cores to spare; extensions and compiled graphs are built once, in one go."""
    return (
        not desk.cpu
        and "triton" in source
        and not any(word in source for word in ("cpp_extension", "torch.compile", "load_inline"))
        and (os.cpu_count() or 1) >= 4
    )


class Prebuild:
    """Builders at work for the candidate whose scratch directory is given.

    ``builds``: the judge's rows, each the calls of one form of one module (``key``). The rows of cases are built first.
    :meth:`wait_for_cases` and :meth:`before_make` wait for those that are needed next; :meth:`close` has to follow.
    """

    def __init__(
        self,
        desk: Desk,
        source: str,
        scratch: Path,
        owner: int | None,
        builds: list[dict[str, Any]],
        cancel: threading.Event,
    ) -> None:
        self.desk, self.source, self.cache, self.owner, self.cancel = desk, source, scratch / "triton", owner, cancel
        self.kept = _store(desk, source)
        self._stop = threading.Event()
        self._launching = threading.Semaphore(_LAUNCHES)
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._children: list[Child] = []
        self._built: set[str] = set()
        """Names of the inputs for which all went well."""
        self._signatures: dict[Signature, None] = {}
        self._ended = False
        self._wait_s = WAIT_S
        # The list first: what another run of the source adds to it meanwhile may come too late to be copied.
        known = _read_list(self.kept)
        try:
            copy_cache(self.kept, self.cache, owner, most_bytes=_MOST_BYTES)
        except OSError as error:
            log.info("nothing is used of an earlier build: %s", error)
            known = set()
        builds = [new for row in builds if (new := _unknown(row, known))]
        # Those with many shapes early, so that no builder has a long one left when the others are done.
        self._rows = collections.deque(sorted(builds, key=lambda row: (not row["case"], -len(row["inputs"]))))
        self._open = collections.Counter(row["key"] for row in builds)
        """Rows of each module that are waited for: nobody is done with them yet, well or badly."""
        self._cases = {row["key"] for row in builds if row["case"]}
        self._at_work = min(MOST, os.cpu_count() or 1, len(builds))
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self._at_work)]
        for thread in self._threads:
            thread.start()

    # -- builders --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._build()
        except (FkError, OSError) as error:
            log.info("ahead-of-time build: %s", error)
        finally:
            with self._changed:
                self._at_work -= 1
                last = self._at_work == 0
                self._changed.notify_all()
            if last:
                self._all_built()

    def _build(self) -> None:
        scratch = self.desk.run.scratch("build")
        try:
            self._build_in(scratch)
        finally:
            trees.remove(scratch)

    def _build_in(self, scratch: Path) -> None:
        with self._launching:
            child = self.desk.builder(self.source, scratch)
        with self._changed:
            self._children.append(child)
        try:
            while (row := self._next()) is not None:
                try:
                    well = self._build_row(child, row)
                    copy_cache(scratch / "triton", self.cache, self.owner, most_bytes=_MOST_BYTES)
                    if self._keep_kernels(scratch / "triton") and well:
                        self._note(row)
                finally:
                    self._settle(row)
        except (ChildGone, wire.ProtocolError) as error:
            log.info("ahead-of-time build: %s", error)
        finally:
            child.kill()
            with self._changed:
                self._children.remove(child)

    def _next(self) -> dict[str, Any] | None:
        """The next row, None where all are taken or this is to stop."""
        with self._changed:
            return self._rows.popleft() if self._rows and not self._stop.is_set() else None

    def _build_row(self, child: Child, row: dict[str, Any]) -> bool:
        """Whether the builder says that all went well."""
        call = {name: value for name, value in row.items() if name not in ("key", "form", "case")}
        answer = child.ask({"do": "build", "calls": [call]}, BUILD_S)
        answer.close_fds()  # nobody asked for any, but the source's own code may send some
        told = answer.body
        if told.get("failed"):
            log.info("ahead-of-time build of %s: %s", row["key"], str(told["failed"])[:300])
        with self._changed:
            self._signatures |= dict.fromkeys(read_claim(told.get("signatures")))
        return not told.get("failed")

    def _keep_kernels(self, cache: Path) -> bool:
        """Put away what a builder has compiled; whether that could be done."""
        try:
            copy_cache(cache, self.kept, most_bytes=_MOST_BYTES)
        except OSError as error:
            log.info("a build could not be kept: %s", error)
            return False
        return True

    def _note(self, row: dict[str, Any]) -> None:
        with self._changed:
            self._built |= {_name(row, shapes) for shapes in row["inputs"]}

    def _settle(self, row: dict[str, Any]) -> None:
        """Nobody need wait for a row any more, whatever became of it."""
        with self._changed:
            self._open[row["key"]] -= 1
            self._changed.notify_all()

    # -- waiting for them ------------------------------------------------------------------------------------------

    def has_cases(self) -> bool:
        """Whether nobody builds modules of the cases any more."""
        with self._changed:
            return not self._at_work or not any(self._open[key] > 0 for key in self._cases)

    def wait_for_cases(self) -> None:
        """Wait a while until builders are done with the modules of the cases."""
        self._wait(self._cases)

    def before_make(self, key: str) -> None:
        """Wait a while until builders are done with a module that is needed now."""
        self._wait({key})

    def _wait(self, keys: set[str]) -> None:
        began = time.monotonic()
        with self._changed:
            deadline = began + self._wait_s
            while (
                any(self._open[key] > 0 for key in keys)
                and self._at_work
                and not self._stop.is_set()
                and not self.cancel.is_set()
                and (left := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(min(left, _SLICE_S))
            self._wait_s -= time.monotonic() - began

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End those that still build, and list what was built for the next run of the same source."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
            late = list(self._children)
        for child in late:
            child.kill()
        # The scratch directory may be removed next: nothing is to be written there any more.
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._list()

    def _all_built(self) -> None:
        """Nobody builds any more, and unless it was stopped everything was tried."""
        self._list()
        if not self._stop.is_set():
            self.desk.launchers.offer(list(self._signatures)[:MOST_SIGNATURES])

    def _list(self) -> None:
        """Once, by whoever comes first."""
        with self._changed:
            first, self._ended = not self._ended, True
            built = set(self._built)
        if first:
            _extend_list(self.kept, built)


def _store(desk: Desk, source: str) -> Path:
    """Where the kernels of a source are kept. Builders choose names in there: the list lies beside it."""
    parts = [source, metadata.version("triton"), desk.device.compute_capability, _LAYOUT]
    name = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
    return desk.settings.cache_dir / "builds" / name


def _unknown(row: dict[str, Any], known: set[str]) -> dict[str, Any] | None:
    """A row with those of its inputs that are not known, None where all are."""
    inputs = [shapes for shapes in row["inputs"] if _name(row, shapes) not in known]
    return row | {"inputs": inputs} if inputs else None


def _name(row: dict[str, Any], shapes: list[list[int]]) -> str:
    """Inputs of one form of one module, whatever their number of rows.

    That differs from run to run, and hardly a kernel is compiled for it. One dimension may as well be a width.
    """
    return json.dumps([row["key"], row["form"], [shape[1:] if len(shape) > 1 else shape for shape in shapes]])


def _read_list(kept: Path) -> set[str]:
    """Names of the inputs for which earlier runs have built."""
    try:
        names = json.loads(kept.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _extend_list(kept: Path, built: set[str]) -> None:
    """Add to the list of what is kept; the oldest builds go when there are many."""
    try:
        # Read anew: meanwhile another run of the source may have built more, or this build was the oldest and went.
        names = built | _read_list(kept)
        if names:
            _write_list(kept, names)
        _prune(kept.parent)
    except OSError as error:
        log.info("a build could not be listed: %s", error)


def _write_list(kept: Path, names: set[str]) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_name(f".{kept.name}.{secrets.token_hex(4)}")
    try:
        part.write_text(json.dumps(sorted(names)), encoding="utf-8")
        part.rename(kept.with_suffix(".json"))
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _prune(builds: Path) -> None:
    found: dict[str, list[Path]] = collections.defaultdict(list)
    for path in builds.iterdir() if builds.is_dir() else ():
        found[path.name.lstrip(".").partition(".")[0]].append(path)
    oldest = sorted(found.values(), key=lambda paths: max(path.stat().st_mtime for path in paths))[:-KEPT]
    for path in (path for paths in oldest for path in sorted(paths, key=Path.is_dir)):
        # The list first: kernels that are not listed are built again, listed ones that are missing would not be.
        if path.is_dir():
            trees.remove(path)
        else:
            path.unlink(missing_ok=True)
