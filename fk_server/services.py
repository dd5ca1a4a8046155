"""What the tools share: the harness, its jobs, the allowed roots, and a safe way to call a blocking verb."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from fk_core.errors import FkError
from fk_core.jobs import Jobs
from fk_server.faults import tool_error
from fk_server.roots import Roots

if TYPE_CHECKING:
    from fk_core.harness import Harness

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_QUESTION_S = 0.5
"""A client asks for the tools at once, and may go on without them: warming up doesn't compete with that."""


class Services:
    """Lives as long as the server process; requests come and go."""

    def __init__(self, harness: Harness, roots: Roots) -> None:
        self.harness = harness
        self.jobs = Jobs(harness)
        self.roots = roots
        self._limiter: anyio.CapacityLimiter | None = None
        self._close_once = threading.Lock()
        self._closed = False
        self._closing = threading.Event()

    def open(self) -> None:
        """Start what takes seconds, without waiting for it."""
        threading.Thread(target=self._warm, name="fk-warm", daemon=True).start()

    def close(self) -> None:
        """Stop jobs and processes. Every caller returns only when that is done, whoever came first."""
        self._closing.set()
        with self._close_once:
            if not self._closed:
                self._closed = True
                self.jobs.close(timeout_s=3.0)
                self.harness.close()

    async def call(self, verb: Callable[..., T], /, *args: object, **kwargs: object) -> T:
        """Run a blocking verb in a thread. What goes wrong becomes a ``ToolError`` that the model can read.

        Nothing but an ``Exception`` may leave a handler: SystemExit or KeyboardInterrupt would stop the whole server.
        """
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(16)

        def guarded() -> T:
            try:
                return verb(*args, **kwargs)
            except FkError as error:
                raise tool_error(error) from error
            except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                raise RuntimeError(f"{type(error).__name__} in a verb of the harness") from error

        return await anyio.to_thread.run_sync(guarded, limiter=self._limiter, abandon_on_cancel=True)

    def _warm(self) -> None:
        if self._closing.wait(_FIRST_QUESTION_S):
            return
        try:
            self.harness.warm()
        except Exception:
            # The next validate starts the same processes and reports what is wrong with them.
            if not self._closing.is_set():
                log.exception("warming up failed")
            return
        try:
            problems = self.harness.measure_again()
        except Exception:
            # Reports go on using the error that is kept.
            if not self._closing.is_set():
                log.exception("the machine's own error could not be measured again")
            return
        if not self._closing.is_set():
            for problem in problems:
                log.warning("while the machine's own error was measured again: %s", problem)
