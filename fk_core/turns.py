"""One at a time, first come first served, among the threads of a process."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from fk_core.errors import Cancelled, LeaseTimeout

_POLL_S = 0.1


class Turns:
    """A queue for one thing. Unlike a lock it keeps the order, can be cancelled, and says how many are ahead."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._changed = threading.Condition()
        self._queue: collections.deque[object] = collections.deque()

    @contextlib.contextmanager
    def turn(
        self,
        *,
        timeout_s: float,
        cancel: threading.Event | None = None,
        on_wait: Callable[[int], None] | None = None,
    ) -> Iterator[None]:
        """Wait for one's turn and keep it for the block. ``on_wait`` is told how many are ahead, at every change.

        Raises:
            Cancelled: ``cancel`` was set while waiting.
            LeaseTimeout: the turn did not come in time.
        """
        me, deadline, told = object(), time.monotonic() + timeout_s, -1
        with self._changed:
            self._queue.append(me)
        try:
            while ahead := self._ahead(me):
                if cancel is not None and cancel.is_set():
                    raise Cancelled(f"cancelled while waiting for {self.what}")
                if time.monotonic() >= deadline:
                    raise LeaseTimeout(
                        f"{self.what} did not come free within {timeout_s:g} s: {ahead} jobs of this process are ahead",
                        hint="Ask again later, or cancel one of them",
                    )
                if on_wait is not None and ahead != told:
                    told = ahead
                    on_wait(ahead)
            yield
        finally:
            with self._changed:
                self._queue.remove(me)
                self._changed.notify_all()

    def idle_within(self, timeout_s: float) -> bool:
        """Whether nobody has it or waits for it, or soon nobody does."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, timeout_s)

    def _ahead(self, me: object) -> int:
        """How many are ahead, after a short wait where there are any."""
        with self._changed:
            if self._queue[0] is not me:
                self._changed.wait(_POLL_S)
            return self._queue.index(me)
