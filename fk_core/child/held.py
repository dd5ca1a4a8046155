"""Many calls of one small shape whose outputs all stay alive, as an engine keeps them: the judge's part.

Returning one of many buffers in turn is not seen while only the last outputs are compared. Every call here has inputs
of its own, all outputs are copied out after the last call, and each must then be what the oracle gives for its call.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fk_core.child import compare, inputs
from fk_core.child.arena import Cursor, spaced
from fk_core.child.calls import DTYPES, Call, output_layout, stacked
from fk_core.child.planned import Probe
from fk_core.child.runner import KEEP_BYTES

if TYPE_CHECKING:
    from fk_core.child.judge import Job

MOST_CALLS = 128
MOST_BYTES = 256 << 20
"""Of inputs and outputs of ``MOST_CALLS`` calls: larger shapes are not held."""
AT_ONCE = {"cpu": 1 << 20, "cuda": 32 << 20}
"""Bytes of inputs and outputs that are judged as one call: what a core's cache holds, or what fp64 copies may take."""
AGAIN = 8
"""Outputs of single calls made long before that are looked at once more."""


class HoldDesk:
    """Lays out and judges the held calls of a job."""

    def __init__(self, job: Job, brief: bool) -> None:
        self.job = job
        self.shapes = [] if brief else self._smallest()
        self.given: dict[str, Tensor] = {}
        """Arguments of all calls, each [calls, *shape]."""
        self.laid: dict[str, Any] = {}

    def room(self) -> int:
        """Bytes of the arena that the largest of the shapes takes."""
        steps = [self._step(self._call(probe)) for _, probe in self.shapes]
        return max(steps, default=0) * MOST_CALLS + (AGAIN + 1) * KEEP_BYTES

    def told(self) -> list[dict[str, Any]]:
        """What the parent chooses from: for each class and form the smallest shape first; ``large`` are those whose
        outputs the runner lets go of soon.
        """
        return [
            {"entry": p.entry, "form": p.form, "dims": p.dims, "dtype": p.dtype, "key": self.job.keys[i]}
            | {"large": self._outputs_bytes(self._call(p)) > KEEP_BYTES}
            for i, p in self.shapes
        ]

    def _outputs_bytes(self, call: Call) -> int:
        return sum(prod(shape) * dtype.itemsize for shape, dtype in output_layout(self.job.task, call).values())

    def _smallest(self) -> list[tuple[int, Probe]]:
        """For every class, form and width of a case the call of the plan with the fewest elements, ascending."""
        smallest: dict[tuple[str, str, str, bool], tuple[int, int, Probe]] = {}  # elements first
        for index, probe in enumerate(self.job.probes):
            if probe.hidden or probe.may_raise or probe.leading:
                continue
            call = self._call(probe)
            elements = sum(prod(shape) for shape in call.shapes.values())
            large = self._outputs_bytes(call) > KEEP_BYTES
            key = (probe.entry, probe.form, self.job.keys[index], large)
            if self._step(call) * MOST_CALLS <= MOST_BYTES and (key not in smallest or elements < smallest[key][0]):
                smallest[key] = (elements, index, probe)
        return [(index, probe) for _, index, probe in sorted(smallest.values(), key=lambda one: one[:2])]

    def _call(self, probe: Probe) -> Call:
        return inputs.call_of(self.job.task, probe)

    def _step(self, call: Call) -> int:
        """Bytes from the inputs of one call to those of the next."""
        cursor = Cursor()
        for shape in call.shapes.values():
            cursor.take(prod(shape) * call.dtype.itemsize)
        for shape, dtype in output_layout(self.job.task, call).values():
            cursor.take(prod(shape) * dtype.itemsize)
        return cursor.offset

    def lay(self, number: int, calls: int) -> dict[str, Any]:
        """Write the inputs of ``calls`` calls of shape ``number``, and say where they and the outputs lie."""
        index, probe = self.shapes[number]
        if not 2 <= calls <= MOST_CALLS:
            raise ValueError(f"{calls} calls; 2 to {MOST_CALLS} can be held")
        job, call = self.job, inputs.call_of(self.job.task, probe)
        step, cursor = self._step(call), Cursor(job.probe_start)
        self.given = self._draw(call, calls)
        places = []
        for name, values in self.given.items():
            shape = tuple(values.shape[1:])
            at = cursor.take(prod(shape) * values.element_size())
            dtype = str(values.dtype).removeprefix("torch.")
            places.append({"name": name, "at": at, "shape": list(shape), "dtype": dtype})
            spaced(job.arena, at, step, calls, shape, values.dtype).copy_(values)
        outputs = []
        for name, (shape, dtype) in output_layout(job.task, call).items():
            size = prod(shape) * dtype.itemsize
            at = cursor.take(size)
            outputs.append({"name": name, "at": at, "bytes": size})
            spaced(job.arena, at, step, calls, (size,), torch.uint8).fill_(0xFF)
        cursor = Cursor(job.probe_start + calls * step)
        again = job.calls.again(AGAIN, cursor)
        if job.device.type == "cuda":
            torch.cuda.synchronize()
        self.laid = {"call": call, "calls": calls, "key": job.keys[index], "step": step}
        self.laid |= {"places": places, "outputs": outputs, "again": again}
        return {
            "key": job.keys[index], "calls": calls, "step": step, "inputs": places, "outputs": outputs, "again": again,
        }  # fmt: skip

    def _draw(self, call: Call, calls: int) -> dict[str, Tensor]:
        """Values of their own for each call."""
        source = inputs.generator(self.job.rng.getrandbits(63), self.job.device)

        def drawn(one: Call) -> dict[str, Tensor]:
            return self.job.oracle.make_inputs(one, inputs.Drawer("normal", one.shapes, one.dtype, source))

        whole = stacked(self.job.task, call, calls)
        if whole is not None:
            return {name: values.reshape(calls, *call.shapes[name]) for name, values in drawn(whole).items()}
        each = [drawn(call) for _ in range(calls)]
        return {name: torch.stack([values[name] for values in each]) for name in call.arguments}

    def judge(self, shared: list[list[int]]) -> dict[str, Any]:
        """Compare all outputs with the oracle. ``shared``: pairs of calls whose memory the candidate says is the same.

        The calls were all made when the bytes were copied, so an output that is wrong now was overwritten, or wrong.
        """
        job, call = self.job, self.laid["call"]
        given, self.given = self.given, {}
        count = self.laid["calls"]
        layout = output_layout(job.task, call)
        # Read once: what is judged as one call is what is judged call by call.
        made = {o["name"]: self._copied(o["at"], count, *layout[o["name"]]) for o in self.laid["outputs"]}
        after = {
            p["name"]: self._copied(p["at"], count, tuple(p["shape"]), DTYPES[p["dtype"]]) for p in self.laid["places"]
        }
        group = max(1, AT_ONCE[job.device.type] // max(1, self.laid["step"]))
        for first in range(0, count, group):
            calls = range(first, min(first + group, count))
            if self._right_as_one(calls, given, made, after):
                continue
            for n in calls:
                one = [{name: t[n] for name, t in tensors.items()} for tensors in (given, made, after)]
                wrong = job.standard.first_wrong(call, self.laid["key"], *one)
                if wrong is not None:
                    return self._wrong(n, wrong, made)
        again = self.laid["again"]
        changed = job.calls.recheck(again, [job.arena.tensor(a["at"], (a["bytes"],), torch.uint8) for a in again])
        job.calls.small.clear()  # the runner has let go of them
        if changed:
            return _aliased(f"{changed}; {count} calls were made after it")
        pairs = [pair for pair in shared if max(pair) < count]
        if pairs:
            return _aliased(f"outputs of calls {pairs[0][0] + 1} and {pairs[0][1] + 1} of {count} share memory")
        return {"ok": True}

    def _right_as_one(self, calls: range, *tensors: dict[str, Tensor]) -> bool:
        """Whether these calls can be judged as one and are right. If not, the calls one by one say what is wrong, and
        which of it the baseline's own errors excuse.
        """
        whole = stacked(self.job.task, self.laid["call"], len(calls))
        if whole is None:
            return False
        part = slice(calls.start, calls.stop)
        given, made, after = ({name: t[part].flatten(0, 1) for name, t in each.items()} for each in tensors)
        return self.job.standard.all_right(whole, self.laid["key"], given, made, after)

    def _copied(self, at: int, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        there = spaced(self.job.arena, at, self.laid["step"], count, shape, dtype)
        return there.clone(memory_format=torch.contiguous_format)

    def _wrong(self, n: int, wrong: compare.Judgement, made: dict[str, Tensor]) -> dict[str, Any]:
        outputs = made[wrong.name].unbind() if wrong.name in made else ()
        count = self.laid["calls"]
        for other, theirs in enumerate(outputs):
            if other != n and compare.same_bits(outputs[n], theirs):
                said = f"outputs of calls {n + 1} and {other + 1} of {count} hold the same bits for other inputs"
                return _aliased(f"{said}: a later call wrote into the memory of an earlier output", wrong.name)
        return {
            "ok": False,
            "outcome": wrong.outcome,
            "kind": "input_mutation",
            "output": wrong.name,
            "judgement": wrong.as_dict(),
            "note": f"call {n + 1} of {count}, looked at after the last one. {wrong.note}".strip(),
            "limit": self.job.task["tolerance"]["limit"],
        }


def _aliased(note: str, output: str = "") -> dict[str, Any]:
    return {"ok": False, "outcome": "MUTATED", "kind": "output_alias", "output": output, "note": note}
