"""What can be worked out of a call before the candidate makes it: its inputs, and what is right for them.

All of it follows from the plan's seeds. While the candidate compiles, starts or captures, the judge has nothing else to
do; what it works out then need not be waited for when the call is judged.
"""

from __future__ import annotations

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

MOST_BYTES = 1 << 30
"""Of what is kept of calls that are not laid out yet."""
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
    """The calls of a job that are known and not laid out yet."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._known: dict[int, Known] = {}
        self._next = 0
        self._bytes = 0

    def take(self, index: int) -> Known:
        """What is known of a call; it is the caller's then."""
        found = self._known.pop(index, None)
        if found is None:
            return Known(self.job, index)
        self._bytes -= _size(found.call, found.layout)
        return found

    def work(self, most: int) -> bool:
        """Work out the next ``most`` calls; says whether there are more. Those too large to be kept are left out."""
        done = 0
        while done < most and self._next < len(self.job.probes):
            index, self._next = self._next, self._next + 1
            if self.job.probes[index].unless is not None or self.job.calls.begun(index):
                continue  # seldom made, or made already
            call = inputs.call_of(self.job.task, self.job.probes[index])
            size = _size(call, output_layout(self.job.task, call))
            if self._bytes + size > MOST_BYTES:
                continue
            known = self._known[index] = Known(self.job, index)
            self._bytes += size
            known.work_out()
            done += 1
        return self._next < len(self.job.probes)


def _size(call: Call, layout: Layout) -> int:
    """Bytes, roughly: its arguments, and what is right for them."""
    given = sum(prod(shape) for shape in call.shapes.values()) * call.dtype.itemsize
    return given + _REFERENCE_BYTES * sum(prod(shape) for shape, _ in layout.values())
