"""Launchers of Triton before 3.7, built by a trusted process for the signatures that candidates' kernels have.

Such a Triton compiles a C launcher for each signature, about 0.15 s of a compiler in every process that meets it first.
Builders (``fk_core.child.builder``) say which signatures they met. One process builds the launchers in the background,
and they are put where every later cache is seeded from (``fk_core.sandbox.triton_stubs``).

A candidate gains nothing by what its builder claims: :func:`read_claim` lets names of scalar types and of pointers to
them through and nothing else, so all it chooses is which of Triton's own launchers get built. These are built from
Triton's own text by a process that never reads the candidate's, in a directory that the candidate can't reach. How many
are built for a job, remembered and kept is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from fk_core.child.triton_version import compiles_launchers
from fk_core.sandbox import trees, triton_stubs
from fk_core.sandbox.launch import Child
from fk_core.settings import Settings
from fk_core.versions import version

log = logging.getLogger(__name__)

Signature = tuple[str, ...]

MOST_SIGNATURES = 32
MOST_ARGUMENTS = 256
BUILD_S = 60.0
_MOST_KNOWN = 4096
_SLICE_S = 0.1
_INTEGERS = {f"{sign}{bits}" for sign in "iu" for bits in (1, 8, 16, 32, 64)}
_FLOATS = {"fp16", "bf16", "fp32", "fp64"}
_FP8 = {"fp8e4nv", "fp8e4b8", "fp8e4b15", "fp8e5", "fp8e5b16"}
"""Only behind pointers: Triton passes none by value."""
TYPES = frozenset({"constexpr"} | _INTEGERS | _FLOATS | {f"*{name}" for name in _INTEGERS | _FLOATS | _FP8})

_one_at_a_time = threading.Lock()
"""Desks of one harness keep their launchers in the same place."""


def read_claim(claim: object) -> list[Signature]:
    """The signatures of a claim that can be built, each once; whatever else it holds is left out.

    ``claim``: anything that JSON can say. Right is a list of lists of names in :data:`TYPES`, in the order of the
    arguments of a kernel. At most :data:`MOST_SIGNATURES` entries are looked at.
    """
    if not isinstance(claim, list):
        return []
    return list(dict.fromkeys(tuple(entry) for entry in claim[:MOST_SIGNATURES] if _is_signature(entry)))


def _is_signature(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) <= MOST_ARGUMENTS
        and all(isinstance(name, str) and name in TYPES for name in entry)
    )


class LauncherStock:
    """Has launchers built, one process at a time and behind every job's back. Thread-safe.

    ``start`` starts the trusted role with a Triton cache of its own in the directory that ``scratch`` makes.
    """

    def __init__(self, settings: Settings, start: Callable[[Path], Child], scratch: Callable[[str], Path]) -> None:
        self.settings = settings
        self._start, self._scratch = start, scratch
        self._lock = threading.Lock()
        self._known: dict[Signature, str] = {}
        """Names of launchers that were built, empty where one could not be, or where the process died of it."""
        self._pending: list[Signature] = []
        self._taken: list[Signature] = []
        """What the worker is about to build."""
        self._worker: threading.Thread | None = None
        self._child: Child | None = None
        self._closed = threading.Event()
        self._free = threading.Event()
        self._free.set()

    def offer(self, signatures: list[Signature]) -> None:
        """Have the unknown ones built, without waiting for it. Nothing is done where Triton compiles no launchers."""
        if not signatures or not compiles_launchers(version("triton")):
            return
        with self._lock:
            if self._closed.is_set():
                return
            queued = {*self._pending, *self._taken}
            self._pending += [s for s in dict.fromkeys(signatures) if s not in queued and not self._has(s)]
            if self._pending and self._worker is None:
                self._worker = threading.Thread(target=self._work, name="fk-launchers", daemon=True)
                self._worker.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No compiler is started inside the block; one that runs already takes a fraction of a second more."""
        with self._lock:
            if not self._closed.is_set():
                self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def close(self) -> None:
        """End what is being built; nothing is built after this."""
        with self._lock:
            self._closed.set()
            self._free.set()
            self._pending.clear()
            child, worker = self._child, self._worker
        if child is not None:
            child.kill()
        if worker is not None:
            worker.join(2.0)

    def _has(self, signature: Signature) -> bool:
        """Whether it was built and is still kept, or can't be built."""
        name = self._known.get(signature)
        return name is not None and (not name or triton_stubs.wanted(self.settings, name))

    def _work(self) -> None:
        while self._next():
            try:
                with self._turn() as mine:
                    if mine:
                        self._build()
            except Exception as error:  # noqa: BLE001 - none of it may touch a job
                log.info("launchers were not built: %s: %s", type(error).__name__, error)
                # What was not come to is forgotten: whoever needs it offers it again.
                with self._lock:
                    self._taken = []

    def _next(self) -> bool:
        """Take what is to be built, once it may be; False where the worker is to end."""
        self._free.wait()
        with self._lock:
            self._taken, self._pending = self._pending, []
            if self._closed.is_set() or not self._taken:
                self._worker = None
                return False
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            return True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Wait until no other desk's builds; False where this one was closed meanwhile."""
        while not (mine := _one_at_a_time.acquire(timeout=_SLICE_S)) and not self._closed.is_set():
            pass
        try:
            yield mine
        finally:
            if mine:
                _one_at_a_time.release()

    def _build(self) -> None:
        if self._held_up():
            return
        scratch = self._scratch("launchers")
        try:
            triton_stubs.seed(self.settings, scratch / "triton")
            child = self._start(scratch)
            try:
                with self._lock:
                    self._child = child
                self._build_each(child)
            finally:
                child.kill()
                with self._lock:
                    self._child = None
                log.info("%s launchers are new", triton_stubs.harvest(self.settings, scratch / "triton"))
        finally:
            trees.remove(scratch)

    def _build_each(self, child: Child) -> None:
        while self._taken and not self._held_up():
            with self._lock:
                signature = self._taken.pop(0)
                self._known[signature] = ""
            told = child.ask({"do": "build", "signature": list(signature)}, BUILD_S).body
            if told["failed"]:
                log.info("no launcher for %s: %s", signature, told["failed"])
            self._known[signature] = told["name"]

    def _held_up(self) -> bool:
        """Whether no compiler is to be started now. What was taken is given back: no other desk waits meanwhile."""
        with self._lock:
            if self._free.is_set() and not self._closed.is_set():
                return False
            self._pending, self._taken = self._taken + self._pending, []
            return True
