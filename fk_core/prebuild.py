"""Compile a candidate's Triton kernels in several processes at once, while the candidate itself is still starting.

Only a matter of speed: what is not compiled here the candidate compiles itself, and failures here are not looked at.
What was built is kept for later runs of the source: see ``build_store``.
"""

from __future__ import annotations

import collections
import logging
import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fk_core import build_store
from fk_core.build_store import MOST_BYTES, BuildStore
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
_SLICE_S, _END_S = 0.05, 2.0
_LAUNCHES = 4
"""Builders that start at a time: those of the cases' rows come first, and don't wait until a dozen have started."""
_EARLY = 6
"""Builders that start before the rows are known: a process takes as long to start as the judge to plan."""


def worthwhile(source: str, desk: Desk) -> bool:
    """Triton sources on a machine with cores to spare; extensions and compiled graphs are built once, in one go."""
    return (
        not desk.cpu
        and "triton" in source
        and not any(word in source for word in ("cpp_extension", "torch.compile", "load_inline"))
        and (os.cpu_count() or 1) >= 4
    )


def needed(builds: list[dict[str, Any]], leave: Collection[int]) -> list[dict[str, Any]]:
    """The judge's rows, with the inputs of calls that will be made; ``leave``: numbers of those that will not."""
    rows = []
    for row in builds:
        inputs = [
            shapes for shapes, calls in zip(row["inputs"], row["calls"], strict=True) if not set(calls) <= set(leave)
        ]
        if inputs:
            rows.append({name: value for name, value in row.items() if name != "calls"} | {"inputs": inputs})
    return rows


class Prebuild:
    """Builders for the candidate whose scratch directory is given; they start, and wait for :meth:`build`.

    :meth:`wait_for_cases` and :meth:`before_make` wait for what is needed next; :meth:`close` has to follow.
    """

    def __init__(self, desk: Desk, source: str, scratch: Path, owner: int | None, cancel: threading.Event) -> None:
        self.desk, self.source, self.cache, self.owner, self.cancel = desk, source, scratch / "triton", owner, cancel
        self.store = BuildStore(desk.settings.cache_dir / "builds", source, desk.device.compute_capability)
        self._stop = threading.Event()
        self._launching = threading.Semaphore(_LAUNCHES)
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._children: list[Child] = []
        self._built: set[str] = set()
        """Names of the inputs that went well."""
        self._signatures: dict[Signature, None] = {}
        self._ended = False
        self._wait_s = WAIT_S
        self._rows: collections.deque[dict[str, Any]] | None = None
        """What nobody has begun to build; None until it is known."""
        self._open: collections.Counter[str] = collections.Counter()
        """Rows of each module that are waited for: nobody is done with them yet, well or badly."""
        self._cases: set[str] = set()
        self._at_work = 0
        self._threads: list[threading.Thread] = []
        self._known = self.store.serve(self.cache, owner)
        # A source that was built before needs few builders, or none.
        self._start(0 if self._known else min(_EARLY, os.cpu_count() or 1))

    def build(self, builds: list[dict[str, Any]]) -> None:
        """``builds``: rows, each the inputs of one form of one module (``key``). The rows of cases are built first."""
        builds = [new for row in builds if (new := _unknown(row, self._known))]
        with self._changed:
            # Those with many shapes early, so that no builder has a long one left when the others are done.
            self._rows = collections.deque(sorted(builds, key=lambda row: (not row["case"], -len(row["inputs"]))))
            self._open = collections.Counter(row["key"] for row in builds)
            self._cases = {row["key"] for row in builds if row["case"]}
            self._changed.notify_all()
            there = self._at_work  # those that started early and have not failed
        self._start(min(MOST, os.cpu_count() or 1, len(builds)) - there)

    def _start(self, count: int) -> None:
        """Start so many builders more."""
        made = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        self._threads += made
        with self._changed:
            self._at_work += len(made)
        for thread in made:
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
                last = self._at_work == 0 and self._rows is not None
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
            if self._stop.is_set() or self._none_left():
                return
            child = self.desk.builder(self.source, scratch)
        with self._changed:
            self._children.append(child)
        try:
            if self._rows is None:
                child.ask({"do": "build", "calls": []}, BUILD_S).close_fds()  # it imports the source
            while (row := self._next()) is not None:
                try:
                    built = self._build_row(child, row)
                    copy_cache(scratch / "triton", self.cache, self.owner, most_bytes=MOST_BYTES)
                    if self.store.keep(scratch / "triton"):
                        self._note(row, built)
                finally:
                    self._settle(row)
        except (ChildGone, wire.ProtocolError) as error:
            log.info("ahead-of-time build: %s", error)
        finally:
            child.kill()
            with self._changed:
                self._children.remove(child)

    def _none_left(self) -> bool:
        """Whether all rows are known and taken."""
        with self._changed:
            return self._rows is not None and not self._rows

    def _next(self) -> dict[str, Any] | None:
        """The next row, once it is known; None where all are taken or this is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows is not None or self._stop.is_set())
            return self._rows.popleft() if self._rows and not self._stop.is_set() else None

    def _build_row(self, child: Child, row: dict[str, Any]) -> list[int]:
        """Numbers of the inputs of which the builder says that they went well."""
        call = {name: value for name, value in row.items() if name not in ("key", "form", "case")}
        answer = child.ask({"do": "build", "calls": [call]}, BUILD_S)
        answer.close_fds()  # nobody asked for any, but the source's own code may send some
        told = answer.body
        if told.get("failed"):
            log.info("ahead-of-time build of %s: %s", row["key"], str(told["failed"])[:300])
        with self._changed:
            self._signatures |= dict.fromkeys(read_claim(told.get("signatures")))
        return _read_done(told.get("done"), len(row["inputs"]))

    def _note(self, row: dict[str, Any], built: list[int]) -> None:
        with self._changed:
            self._built |= {build_store.name(row, row["inputs"][number]) for number in built}

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
            self.store.extend(built)


def _unknown(row: dict[str, Any], known: set[str]) -> dict[str, Any] | None:
    """A row with those of its inputs that are not known, None where all are."""
    inputs = [shapes for shapes in row["inputs"] if build_store.name(row, shapes) not in known]
    return row | {"inputs": inputs} if inputs else None


def _read_done(claim: object, count: int) -> list[int]:
    """What a builder claims of the one call that it was asked for: it runs the candidate's own code."""
    done = claim[0] if isinstance(claim, list) and len(claim) == 1 else None
    if not isinstance(done, list):
        return []
    return [number for number in range(count) if number in done]
