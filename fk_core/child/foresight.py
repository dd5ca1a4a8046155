"""What can be worked out of a call before the candidate makes it: its inputs, and what is right for them.

All of it follows from the plan's seeds. While the candidate compiles, starts or captures, the judge has nothing else to
do; what it works out then need not be waited for when the call is judged.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from fk_core.child import compare, inputs, layouts
from fk_core.child.calls import Call, output_layout
from fk_core.child.oracle import Reference

if TYPE_CHECKING:
    from fk_core.child.judge import Job

MOST_BYTES, EACH_BYTES = 2 << 30, 128 << 20
"""Of what is kept of all calls that are not laid out yet, and of one."""
_REFERENCE_BYTES = 16
"""An element of an output: the oracle's value and its magnitude, in fp64."""


class Known:
    """One call of the plan. What is right for its inputs is worked out when it is first asked for."""

    def __init__(self, job: Job, index: int) -> None:
        self._job, self._key = job, job.keys[index]
        self.probe = job.probes[index]
        self.call: Call = inputs.call_of(job.task, self.probe)
        self.layout = output_layout(job.task, self.call)
        self.values = inputs.materialise(job.task, job.probes, index, job.oracle.make_inputs, job.device)
        shapes = inputs.buffer_shapes(self.call, self.probe)
        self.stored = {name: layouts.spread(tensor, shapes[name]) for name, tensor in self.values.items()}
        """What lies in the arena: the arguments, or longer tensors of which they are a part."""

    @cached_property
    def expected(self) -> dict[str, Reference]:
        return self._job.standard.references(self.call, self._key, self.values)

    @cached_property
    def rules(self) -> dict[str, compare.Rule]:
        return self._job.standard.rules(self.call, self.probe.generic)

    @cached_property
    def baseline(self) -> list[compare.Judgement] | None:
        """How the production baseline does on the same values."""
        return self._job.standard.of_baseline(self.call, self._key, self.values, self.expected, self.rules)

    def work_out(self) -> None:
        """All that judging the call will ask for."""
        if self.expected and self.probe.case_id is not None:
            _ = self.baseline


class Foresight:
    """The calls of a job that are known and not laid out yet."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._known: dict[int, Known] = {}
        self._bytes = 0
        self._inputs, self._answers = iter(range(len(job.probes))), iter(range(len(job.probes)))

    def take(self, index: int) -> Known:
        """What is known of a call; it is the caller's then."""
        found = self._forget(index)
        return Known(self.job, index) if found is None else found

    def inputs(self, most: int, leave: Collection[int]) -> bool:
        """Draw the inputs of the next ``most`` calls; whether there may be more. Calls too large to be kept are left
        out, and those that nobody will make: ``leave``, and those that are seldom made.
        """
        for index in self._inputs:
            if index in leave or not self._room(index):
                continue
            try:
                self._known[index] = Known(self.job, index)
            except Exception:  # noqa: BLE001 - it is raised again where the call is laid out
                self._bytes -= self._size(index)
            most -= 1
            if not most:
                return True
        return False

    def answers(self, most: int) -> bool:
        """Work out what is right for the next ``most`` calls whose inputs are there; whether there may be more."""
        for index in self._answers:
            if index not in self._known:
                continue
            try:
                self._known[index].work_out()
            except Exception:  # noqa: BLE001 - it is raised again where the call is judged
                self._forget(index)
            most -= 1
            if not most:
                return True
        return False

    def _forget(self, index: int) -> Known | None:
        found = self._known.pop(index, None)
        if found is not None:
            self._bytes -= self._size(index)
        return found

    def _room(self, index: int) -> bool:
        """Whether to draw the inputs of a call; counts what it takes."""
        if self.job.probes[index].unless is not None or self.job.calls.begun(index):
            return False
        size = self._size(index)
        if size > EACH_BYTES or self._bytes + size > MOST_BYTES:
            return False
        self._bytes += size
        return True

    def _size(self, index: int) -> int:
        """Bytes, roughly: the arguments of a call, and what is right for them."""
        probe = self.job.probes[index]
        call = inputs.call_of(self.job.task, probe)
        given = sum(map(prod, inputs.buffer_shapes(call, probe).values())) * call.dtype.itemsize
        return given + _REFERENCE_BYTES * sum(prod(shape) for shape, _ in output_layout(self.job.task, call).values())
