"""The judge's part in the calls of the plan: their inputs, where their outputs go, and whether these are right.

Calls lie in two regions of the arena in turn, so that the inputs of the next call are there while one is made, and one
can be judged while the next is made. Calls that relate to an earlier one lie in the region of that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fk_core.child import compare, inputs
from fk_core.child.arena import Cursor
from fk_core.child.calls import DTYPES, Call, output_layout
from fk_core.child.runner import KEEP_BYTES

if TYPE_CHECKING:
    from fk_core.child.judge import Job

RECHECK_BYTES = 1 << 20
SHIFT = 64 << 10
"""Calls that relate to an earlier one lie up to so many bytes from where that one lay."""


@dataclass(frozen=True)
class Laid:
    """A call whose inputs are in the arena, and that has not been judged."""

    call: Call
    given: dict[str, Tensor]
    places: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    again: list[dict[str, Any]]
    gaps: dict[str, tuple[dict[str, Any], Tensor]]


@dataclass(frozen=True)
class Taken:
    """What a call left in the arena, copied before the candidate's code runs again."""

    got: dict[str, Tensor]
    after: dict[str, Tensor]
    between: dict[str, Tensor]
    """What stands between the rows of strided arguments."""
    again: list[Tensor]


class CallDesk:
    """Lays out calls and judges them, in the order of the plan. ``room``: bytes that one of them needs at most."""

    def __init__(self, job: Job, room: int) -> None:
        self.job = job
        self.region = SHIFT + room
        self.starts: dict[int, tuple[int, int]] = {}
        """Region of each call, and how far into it."""
        self.laid: dict[int, Laid] = {}
        self.taken: dict[int, Taken] = {}
        self.outputs: dict[int, list[Tensor]] = {}
        self.stable: dict[int, list[int]] = {}
        self.small: dict[tuple[int, int], Tensor] = {}
        """Outputs, by call and number, that the candidate's runner keeps for as long as calls are made."""
        self.flags: dict[str, bool] = {}

    def _view(self, place: dict[str, Any]) -> Tensor:
        tensor = self.job.arena.tensor(place["at"], tuple(place["shape"]), DTYPES[place["dtype"]])
        return tensor[..., : place["width"]] if place.get("width") else tensor

    def lay_free(self, following: list[int]) -> list[dict[str, Any]]:
        """Lay out the first of these calls, as far as their regions hold no call that has to be judged yet."""
        laid = []
        for i in following:
            if self._region(i) in [self.starts[n][0] for n in self.laid]:
                break
            laid.append(self.lay(i))
        return laid

    def drop(self, i: int) -> None:
        """A call that was laid out will not be judged."""
        del self.laid[i]

    def lay(self, i: int) -> dict[str, Any]:
        """Write the inputs of call ``i`` into the arena and say where they and the outputs lie.

        The call before it may have to be judged yet, but no call that lies in the same region.
        """
        probe = self.job.probes[i]
        call = inputs.call_of(self.job.task, probe)
        values = inputs.materialise(self.job.task, self.job.probes, i, self.job.oracle.make_inputs, self.job.device)
        region, shift = self.starts[i] = self._region(i), self._shift(i)
        cursor = Cursor(self.job.probe_start + region * self.region + shift)
        places = []
        gaps: dict[str, tuple[dict[str, Any], Tensor]] = {}
        for name, tensor in values.items():
            stored = tensor
            if probe.relation == "strided":
                source = inputs.generator(probe.seed ^ 1, self.job.device)
                stored = inputs.padded(tensor, source)
            place: dict[str, Any] = {
                "name": name,
                "at": cursor.take(stored.numel() * stored.element_size()),
                "shape": list(stored.shape),
                "dtype": str(stored.dtype).removeprefix("torch."),
            }
            if probe.relation == "strided":
                place["width"] = tensor.shape[-1]
                gaps[name] = (place, stored)
            self.job.arena.tensor(place["at"], tuple(stored.shape), stored.dtype).copy_(stored)
            places.append(place)
        outputs = []
        for name, (shape, dtype) in output_layout(self.job.task, call).items():
            size = prod(shape) * dtype.itemsize
            at = cursor.take(size)
            self.job.arena.tensor(at, (size,), torch.uint8).fill_(0xFF)
            outputs.append({"name": name, "at": at, "bytes": size})
        again = []
        room = RECHECK_BYTES
        for number, size in self._sizes_before(i).items():
            if 0 < size <= room:
                again.append({"seq": i - 1, "output": number, "at": cursor.take(size), "bytes": size})
                room -= size
        again += self.again(1, cursor)
        if self.job.device.type == "cuda":
            torch.cuda.synchronize()
        self.laid[i] = Laid(call, values, places, outputs, again, gaps)
        return {"key": self.job.keys[i], "seq": i, "inputs": places, "outputs": outputs, "again": again}

    def _region(self, i: int) -> int:
        base = self.job.probes[i].base
        if base in self.starts:
            return self.starts[base][0]
        latest = next(reversed(self.starts.values()), None)
        return 0 if latest is None else 1 - latest[0]

    def _shift(self, i: int) -> int:
        """How far into its region a call lies."""
        probe = self.job.probes[i]
        if probe.base is None:
            return 0
        if probe.placement == "same" and probe.base in self.starts:
            return self.starts[probe.base][1]
        return self.job.rng.randrange(1, SHIFT // 256) * 256

    def _sizes_before(self, i: int) -> dict[int, int]:
        """Bytes of each output of the call before this one, if it is made: it may not have been judged yet."""
        before = self.laid.get(i - 1)
        if before is not None:
            return {number: o["bytes"] for number, o in enumerate(before.outputs)}
        kept = self.outputs.get(i - 1, [])
        return {number: kept[number].numel() * kept[number].element_size() for number in self.stable.get(i - 1, [])}

    def again(self, count: int, cursor: Cursor) -> list[dict[str, Any]]:
        """Places for up to ``count`` outputs of earlier calls, drawn from those that the runner has kept."""
        chosen = self.job.rng.sample(list(self.small), min(count, len(self.small)))
        sizes = [self.small[key].numel() * self.small[key].element_size() for key in chosen]
        return [
            {"seq": seq, "output": number, "at": cursor.take(size), "bytes": size}
            for (seq, number), size in zip(chosen, sizes, strict=True)
        ]

    def take(self, i: int) -> None:
        """Copy what call ``i`` left, so that the next call can be made while this one is judged."""
        laid, arena = self.laid[i], self.job.arena
        layout = output_layout(self.job.task, laid.call).values()
        self.taken[i] = Taken(
            {o["name"]: arena.tensor(o["at"], *of).clone() for o, of in zip(laid.outputs, layout, strict=True)},
            {p["name"]: self._view(p).clone() for p in laid.places},
            {
                name: arena.tensor(place["at"], tuple(stored.shape), stored.dtype)[..., place["width"] :].clone()
                for name, (place, stored) in laid.gaps.items()
            },
            [arena.tensor(a["at"], (a["bytes"],), torch.uint8).clone() for a in laid.again],
        )
        if self.job.device.type == "cuda":
            torch.cuda.synchronize()

    def judge(
        self, i: int, described: list[dict[str, Any]], aliases: list[list[int]], earlier: list[int]
    ) -> dict[str, Any]:
        """Compare what was taken of call ``i``. ``described``: the candidate's own words on its outputs."""
        probe, laid, taken = self.job.probes[i], self.laid.pop(i), self.taken.pop(i)
        call, given = laid.call, laid.given
        form = self.job.task["entries"][call.entry]["forms"][call.form]
        names = list(form["outputs"])
        problem = self._structure(call, described, names)
        if problem:
            return problem
        got, after = taken.got, taken.after
        expected = self.job.standard.references(call, self.job.keys[i], given)
        rules = self.job.standard.rules(call, probe.generic)
        judged = compare.judge_call(got, expected, rules, before=given, after=after, mutates=dict(form["mutates"]))
        wrong = [j for j in judged if not j.ok]
        note = ""
        baseline_ratio = None
        if probe.case_id is not None or wrong:
            baseline = self.job.standard.of_baseline(call, self.job.keys[i], given, expected, rules)
            if baseline is not None:
                baseline_ratio = max((j.max_error_ratio or 0.0 for j in baseline), default=None)
                wrong, note = self.job.standard.beside(judged, baseline, {**after, **got}, expected, rules)
        between = self._between_rows(laid, taken)
        if between and not wrong:
            return {"ok": False, "outcome": "MUTATED", "note": between, "kind": "input_mutation"}
        again = self.recheck(laid.again, taken.again)
        if earlier and not again:
            again = f"output {names[min(earlier[0], len(names) - 1)]} lies in the memory of an earlier call's output"
        if again and not wrong:
            return {"ok": False, "outcome": "MUTATED", "note": again, "kind": "output_alias"}
        alias = self.alias(aliases, names, form, [p["name"] for p in laid.places])
        if alias and not wrong:
            return {"ok": False, "outcome": "MUTATED", "note": alias, "kind": "output_alias"}
        self._remember(i, list(got.values()), aliases)
        first = wrong[0] if wrong else None
        return {
            "ok": not wrong,
            "outcome": first.outcome if first else "",
            "output": first.name if first else "",
            "judgement": first.as_dict() if first else {},
            "note": (first.note if first else "") or note,
            "skipped": note,
            "limit": self.job.task["tolerance"]["limit"],
            "max_abs_error": _most(j.max_abs_error for j in judged),
            "max_error_ratio": _most(j.max_error_ratio for j in judged),
            "baseline_error_ratio": baseline_ratio,
        }

    def _structure(self, call: Call, described: list[dict[str, Any]], names: list[str]) -> dict[str, Any] | None:
        layout = output_layout(self.job.task, call)
        if len(described) != len(names):
            said = f"forward returned {len(described)} tensors; the contract has {len(names)}: {', '.join(names)}"
            return {"ok": False, "outcome": "WRONG_SHAPE", "note": said, "output": names[0] if names else ""}
        for name, row in zip(names, described, strict=True):
            shape, dtype = layout[name]
            wanted = str(dtype).removeprefix("torch.")
            outcome, said = "", ""
            if row.get("foreign"):
                outcome, said = "CONTRACT_BROKEN", f"output {name} must be a torch.Tensor: {row['problem']}"
            elif row.get("problem"):
                outcome, said = "TAMPERED", f"output {name} is no plain tensor: {row['problem']}"
            elif row["shape"] != list(shape):
                outcome, said = "WRONG_SHAPE", f"output {name} has shape {row['shape']}; expected {list(shape)}"
            elif row["dtype"] != wanted:
                outcome, said = "WRONG_DTYPE", f"output {name} is {row['dtype']}; expected {wanted}"
            elif row["device"] != self.job.device.type:
                outcome, said = "WRONG_SHAPE", f"output {name} is on {row['device']}; expected {self.job.device.type}"
            if outcome:
                return {"ok": False, "outcome": outcome, "note": said, "output": name, "kind": "lazy_output"}
        return None

    def _between_rows(self, laid: Laid, taken: Taken) -> str:
        """What was written where a strided argument has no elements."""
        for name, (place, stored) in laid.gaps.items():
            if not compare.same_bits(taken.between[name], stored[..., place["width"] :]):
                return f"memory between the rows of {name} was written: its rows are {stored.shape[-1]} elements apart"
        return ""

    def recheck(self, places: list[dict[str, Any]], copied: list[Tensor]) -> str:
        """Whether an output of an earlier call, copied anew just now, is no longer what it was."""
        for a, now in zip(places, copied, strict=True):
            kept = self.small.get((a["seq"], a["output"]))
            if kept is None:
                if a["output"] not in self.stable.get(a["seq"], []):
                    continue  # it lies in an argument, which is another call's now, or that call failed
                kept = self.outputs[a["seq"]][a["output"]]
            if not compare.same_bits(now, kept.contiguous().reshape(-1).view(torch.uint8)):
                return "an output of an earlier call changed when forward was called again: outputs share memory"
        return ""

    @staticmethod
    def alias(aliases: list[list[int]], names: list[str], form: dict[str, Any], given: list[str]) -> str:
        for o, k in aliases:
            if o < len(names) and k < len(given) and given[k] not in form["outputs"][names[o]]["aliases"]:
                return f"output {names[o]} shares memory with the argument {given[k]}; the contract asks for new memory"
        return ""

    def _remember(self, i: int, got: list[Tensor], aliases: list[list[int]]) -> None:
        aliased = {o for o, _ in aliases}
        self.outputs[i] = got
        self.stable[i] = [n for n in range(len(got)) if n not in aliased]
        if sum(tensor.numel() * tensor.element_size() for tensor in got) <= KEEP_BYTES:
            self.small |= {(i, n): got[n] for n in self.stable[i] if got[n].numel()}
        probe = self.job.probes[i]
        if probe.base is not None and probe.base in self.outputs and self.outputs[probe.base]:
            base = self.outputs[probe.base]
            if probe.relation == "same_values":
                same = all(compare.same_bits(a, b) for a, b in zip(got, base, strict=True))
                self.flags["repeatable"] = self.flags.get("repeatable", True) and same
            elif probe.relation == "row":
                lead = [b[tuple(slice(0, n) for n in a.shape)] for a, b in zip(got, base, strict=True)]
                same = all(compare.same_bits(a, b) for a, b in zip(got, lead, strict=True))
                self.flags["batch_invariant"] = self.flags.get("batch_invariant", True) and same
        bases = {p.base for p in self.job.probes[i + 1 :] if p.base is not None}
        for old in [n for n in self.outputs if n < i and n not in bases]:
            del self.outputs[old]


def _most(values: Any) -> float | None:
    found = [v for v in values if v is not None]
    return max(found) if found else None
