"""What one job may ask of the judge, and what becomes of its answers."""

from __future__ import annotations

import collections
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from fk_core.child import wire
from fk_core.errors import Cancelled, DeviceBroken, FkError, HarnessError, JudgeDied, TaskBroken
from fk_core.sandbox.launch import Child

if TYPE_CHECKING:
    from fk_core.desk import Desk

Ticket = tuple[int, int]

ANSWER_S = 300.0
_BASELINES = os.path.join("fk_core", "child", "baselines") + os.sep
_NO_MEMORY = ("CUDA out of memory", "out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "STATUS_ALLOC_FAILED")
"""As torch, the driver and Triton, ``cudadrv``, and the libraries say it."""
_SLICE_S = 0.1
_DRAIN_S, _DRAIN_CANCELLED_S = 20.0, 1.0


class NoMemory(DeviceBroken):
    """The judge found no memory on the device."""

    code = "device_full"


class JudgeSession:
    """Bound to one judge process: a judge that replaces it knows nothing of this job.

    ``detail`` adds up the seconds the judge was waited for, by what it did.
    """

    def __init__(self, desk: Desk, judge: Child, cancel: threading.Event | None = None) -> None:
        self.desk, self.judge, self.cancel = desk, judge, cancel
        self.detail: collections.defaultdict[str, float] = collections.defaultdict(float)
        self._open: dict[Ticket, str] = {}
        self._lost = False
        self._task_file = ""

    def ask(self, do: str, *, fds: tuple[int, ...] = (), **body: Any) -> wire.Frame:
        """Raises ``JudgeDied``, ``Cancelled``, and whatever the judge itself failed with (:func:`_fault`)."""
        return self.collect_frame(self._post(do, body, fds), do)

    def post(self, do: str, **body: Any) -> Ticket:
        """Send without waiting; pass what comes back to :meth:`collect`."""
        return self._post(do, body, ())

    def collect(self, ticket: Ticket, do: str) -> dict[str, Any]:
        return self.collect_frame(ticket, do).body

    def collect_frame(self, ticket: Ticket, do: str) -> wire.Frame:
        began = time.monotonic()
        try:
            frame = self._answer(ticket, do, began + ANSWER_S)
        finally:
            self.detail[f"judge {do}"] += time.monotonic() - began
        if frame.kind == wire.ERROR:
            raise self._fault(do, frame.body.get("exception") or {})
        return frame

    def end(self) -> None:
        """Take in the answers nobody waited for, and have the job forgotten. A judge that won't is ended."""
        if self._lost:
            return
        cancelled = self.cancel is not None and self.cancel.is_set()
        self.cancel = None
        deadline = time.monotonic() + (_DRAIN_CANCELLED_S if cancelled else _DRAIN_S)
        try:
            self._open[self._post("close", {}, ())] = "close"
            for ticket, do in list(self._open.items()):
                for fd in self._answer(ticket, do, deadline).fds:
                    os.close(fd)
        except FkError:
            self.desk.forget(self.judge)

    def _post(self, do: str, body: dict[str, Any], fds: tuple[int, ...]) -> Ticket:
        if self._lost:
            raise JudgeDied("the judge of this job is gone")
        if do == "open":
            self._task_file = str(body["task"]["path"])
        try:
            ticket = self.judge.channel.post({"do": do, **body}, fds=fds)
        except wire.Closed as error:
            raise self._died(do, error) from error
        except wire.ProtocolError as error:
            raise HarnessError(f"the judge could not be asked for {do!r}: {error}") from error
        self._open[ticket] = do
        return ticket

    def _answer(self, ticket: Ticket, do: str, deadline: float) -> wire.Frame:
        while True:
            if self.cancel is not None and self.cancel.is_set():
                raise Cancelled(f"stopped while the judge did {do!r}")
            try:
                frame = self.judge.channel.answer(*ticket, timeout_s=_SLICE_S)
            except wire.TimedOut as error:
                if time.monotonic() > deadline:
                    raise self._died(do, error) from error
                continue
            except wire.ProtocolError as error:
                raise self._died(do, error) from error
            self._open.pop(ticket, None)
            return frame

    def _died(self, do: str, error: wire.ProtocolError) -> JudgeDied:
        self._lost = True
        self.judge.wait(1.0)
        how, said = self.judge.exit_status, self.judge.log_tail().strip()[-800:]
        self.desk.forget(self.judge)
        what = "did not answer in time" if isinstance(error, wire.TimedOut) else f"ended ({how})"
        return JudgeDied(
            f"the judge of {self.desk.device.uuid} {what} while it did {do!r}",
            hint=f"It is started anew for the next job; if this repeats, run `fk doctor`. {said}".strip(),
        )

    def _fault(self, do: str, told: dict[str, Any]) -> FkError:
        """Whose fault it is that the judge could not do something: the device's, the task's or its own."""
        kind, message, trace = str(told.get("type")), str(told.get("message")), str(told.get("trace", ""))
        said = f"{kind}: {message.splitlines()[0][:500] if message else ''}".rstrip(". ")
        if any(word in message for word in _NO_MEMORY):
            if "CUDA error" in message:
                self._lost = True
                self.desk.forget(self.judge)
            return NoMemory(
                f"the judge found no memory on {self.desk.device.uuid} for {do!r}: {said}",
                hint="Something else uses the GPU's memory; `fk gpus` shows who",
            )
        if "CUDA error" in message or "CUDA driver error" in message:
            # Such an error stays in the process's context for good.
            self._lost = True
            self.desk.forget(self.judge)
            return DeviceBroken(
                f"{self.desk.device.uuid} failed while the judge did {do!r}: {said}",
                hint="Run nvidia-smi and look for Xid errors in dmesg",
            )
        if (self._task_file and self._task_file in trace) or kind == "OracleError":
            return TaskBroken(
                f"the task's own code failed while the judge did {do!r}: {said}",
                hint=f"Mend {self._task_file}; the candidate is not to blame.{_end_of(trace)}",
            )
        if kind in ("BaselineUnusable", "UnknownProvider") or _BASELINES in trace:
            return TaskBroken(
                f"no baseline to judge against: {do!r} raised {said}",
                hint=f"Mend or remove that library; the candidate is not to blame.{_end_of(trace)}",
            )
        return HarnessError(f"the judge could not do {do!r}: {said}", hint=_end_of(trace).strip())


def _end_of(trace: str) -> str:
    """The last lines of a traceback, below what stands before them."""
    lines = trace.strip()[-1200:].split("\n")
    return "".join(f"\n{line}" for line in (lines[1:] if len(trace.strip()) > 1200 else lines) if line)
