"""What can be worked out of a call before the candidate makes it: its inputs, and what is right for them.

All of it follows from the plan's seeds. While the candidate compiles, starts or captures, the judge has nothing else to
do; what it works out then need not be waited for when the call is judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import torch

from fk_core.child import compare, inputs
from fk_core.child.calls import Call, output_layout
from fk_core.child.oracle import Reference

if TYPE_CHECKING:
    from fk_core.child.judge import Job

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

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
        self.stored = self.values
        """What lies in the arena: the arguments, or buffers with longer rows of which they are a part."""
        if self.strided:
            source = inputs.generator(self.probe.seed ^ 1, job.device)
            self.stored = {name: inputs.padded(tensor, source) for name, tensor in self.values.items()}

    @property
    def strided(self) -> bool:
        return self.probe.relation == "strided"

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
    """The calls of a job that are known and not laid out yet: first the inputs of all, then what is right for them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._known: dict[int, Known] = {}
        self._bytes = 0
        self._plan = itertools.chain(
            ((index, False) for index in range(len(job.probes))), ((index, True) for index in range(len(job.probes)))
        )

    def take(self, index: int) -> Known:
        """What is known of a call; it is the caller's then."""
        found = self._known.pop(index, None)
        if found is None:
            return Known(self.job, index)
        self._bytes -= _size(found.call, found.layout)
        return found

    def work(self, most: int) -> bool:
        """Take the next ``most`` steps; says whether there may be more. Calls too large to be kept are left out."""
        for index, whole in self._plan:
            if whole and index in self._known:
                self._known[index].work_out()
            elif whole or not self._room(index):
                continue
            else:
                self._known[index] = Known(self.job, index)
            most -= 1
            if not most:
                return True
        return False

    def _room(self, index: int) -> bool:
        """Whether to work out a call: there is room for it, and it is not made already or seldom made at all."""
        probe = self.job.probes[index]
        if probe.unless is not None or self.job.calls.begun(index):
            return False
        call = inputs.call_of(self.job.task, probe)
        size = _size(call, output_layout(self.job.task, call))
        if size > EACH_BYTES or self._bytes + size > MOST_BYTES:
            return False
        self._bytes += size
        return True


def _size(call: Call, layout: Layout) -> int:
    """Bytes, roughly: its arguments, and what is right for them."""
    given = sum(prod(shape) for shape in call.shapes.values()) * call.dtype.itemsize
    return given + _REFERENCE_BYTES * sum(prod(shape) for shape, _ in layout.values())
