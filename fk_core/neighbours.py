"""Who else computes on the GPU while a candidate is timed: times taken beside strangers are worth nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from fk_core.errors import MachineError
from fk_core.leases.foreign import Foreign, Registry
from fk_core.leases.nvml import Nvml

Look = Callable[[], list[Foreign]]

_EVERY_S = 0.25


class Contended(MachineError):
    """A process without a lease computed on the device while it was timed."""

    code = "contended"


class Neighbours:
    """Looks for strangers at the start, every quarter of a second, and at the end of a block; then raises if there
    were any. ``while_`` says whether a look counts just now: only the exclusive part of a lease does."""

    def __init__(self, look: Look, while_: Callable[[], bool] = lambda: True) -> None:
        self._look, self._counts = look, while_
        self.seen: dict[int, Foreign] = {}
        self.blind = ""
        """Why strangers can't be seen, where the driver does not say."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fk-neighbours", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sample()
        self._done.set()
        self._thread.join()
        if kind is None and self.seen:
            named = "; ".join(f"pid {f.pid} ({f.name})" for f in list(self.seen.values())[:5])
            raise Contended(
                f"correct, but not timed: {named} computed on the GPU without a lease",
                hint="End it, or give it another GPU, then submit the same source again",
            )

    def _run(self) -> None:
        while not self._done.wait(_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        if self.blind or not self._counts():
            return
        try:
            self.seen |= {found.pid: found for found in self._look()}
        except MachineError as error:
            self.blind = f"processes of others on the GPU can't be seen: {error.message}"


def strangers(registry: Registry, nvml: Nvml, uuid: str, using: set[int]) -> Look:
    """Looks at one GPU. ``using`` are processes of ours that have a context on it."""

    def look() -> list[Foreign]:
        processes, ours = nvml.processes(uuid), using | registry.pids()
        found = registry.among(processes, ours)
        if using and using.isdisjoint(p.pid for p in processes):
            # The driver counts by another pid namespace: an id that fits a process here does so by chance.
            return found[: max(0, len(processes) - len(ours))]
        return found

    return look
