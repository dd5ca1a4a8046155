"""Why a validation has to end before it is done, and the thread that notices."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Literal, Self

from fk_core.sandbox.launch import Child

Why = Literal["", "cancelled", "closed", "late"]

_POLL_S = 0.05


class Stop:
    """``event`` is set when the caller cancels, the harness closes, or the candidate's time is up; ``why`` says which.

    The candidate that was given to :meth:`watching` is then killed, so that whoever waits for its answer wakes up. Its
    channel and its tree are left to the thread that owns them.
    """

    def __init__(self, cancel: threading.Event | None, closing: threading.Event) -> None:
        self.event = threading.Event()
        self.why: Why = ""
        self._cancel, self._closing = cancel, closing
        self._deadline: float | None = None
        self._waited: Callable[[], float] = lambda: 0.0
        self._lock = threading.Lock()
        self._handle = -1
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fk-stop", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    @contextlib.contextmanager
    def watching(self, child: Child, total_s: float, waited: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
        """Kill this child when there is a reason to stop, ``total_s`` from now at the latest.

        The seconds by which ``waited`` grows meanwhile are not counted: in them it could not go on.
        """
        with self._lock:
            self._waited = waited
            self._deadline = time.monotonic() + total_s - waited()
            with contextlib.suppress(ProcessLookupError):
                # A handle, not a number: the number may be another process's by the time it is used.
                self._handle = os.pidfd_open(child.pid)
        self._look()
        try:
            yield
        finally:
            with self._lock:
                self._deadline = None
                if self._handle >= 0:
                    os.close(self._handle)
                    self._handle = -1

    def late(self) -> None:
        """The time is up, by another clock than this one: the lease's."""
        self._stop("late")

    def _run(self) -> None:
        while not self._done.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            self._stop("cancelled")
        elif self._closing.is_set():
            self._stop("closed")
        elif self._is_late():
            self._stop("late")

    def _is_late(self) -> bool:
        deadline = self._deadline
        return deadline is not None and time.monotonic() > deadline + self._waited()

    def _stop(self, why: Why) -> None:
        with self._lock:
            self.why = self.why or why
            self.event.set()
            if self._handle >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
