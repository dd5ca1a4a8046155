"""The judge's part in the calls of the plan: their inputs, where their outputs go, and whether these are right.

Calls lie in two regions of the arena in turn, so that the inputs of the next call are there while one is made. Calls
that relate to an earlier one lie in the region of that one. What a call left is copied before the candidate's code runs
again; it may be judged much later.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fk_core.child import compare, layouts
from fk_core.child.arena import Cursor, poison
from fk_core.child.calls import DTYPES
from fk_core.child.foresight import Foresight, Known
from fk_core.child.runner import KEEP_BYTES

if TYPE_CHECKING:
    from fk_core.child.judge import Job

RECHECK_BYTES = 1 << 20
_WAITING_BYTES, _WAITING_SHARE = 1 << 30, 0.03
"""What calls that wait to be judged may take, at least, and as a share of a GPU's memory."""
_CHANGED = "an output of an earlier call changed when forward was called again: outputs share memory"
SHIFT = 64 << 10
"""Calls that relate to an earlier one lie up to so many bytes from where that one lay."""
ALIGNED = 16
"""Bytes: what the contract promises of where an argument lies. The first argument of such a call has no more."""


@dataclass(frozen=True)
class Laid:
    """A call whose inputs are in the arena, and that has not been judged. All of it lies between two offsets."""

    known: Known
    begin: int
    end: int
    places: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    again: list[dict[str, Any]]


@dataclass(frozen=True)
class Taken:
    """What a call left in the arena, copied before the candidate's code ran again, and what was said of it."""

    known: Known
    size: int
    """Bytes of the copy, and of what the arguments were before."""
    got: dict[str, Tensor]
    after: dict[str, Tensor]
    stored: dict[str, Tensor]
    """The arguments with what lies around them: see ``Known.stored``."""
    kept: list[tuple[Tensor, Tensor]]
    """Bytes of outputs of earlier calls, as they were behind this call and as they were before."""
    base: list[Tensor]
    """Outputs of the call that this one relates to; empty where there is none."""
    problem: dict[str, Any] | None
    """What is wrong with the form of the outputs."""
    strides: str
    """What a consumer of the outputs has to be told; right answers may lie in memory in any way."""
    aliases: list[list[int]]
    earlier: list[int]


@dataclass
class _Left:
    """What a call left, in one piece, and the candidate's words on it."""

    number: int
    laid: Laid
    bytes: Tensor
    returned: int
    described: list[dict[str, Any]]
    aliases: list[list[int]]
    earlier: list[int]

    @property
    def size(self) -> int:
        """Bytes of the copy, and of what the arguments were before."""
        return 2 * self.bytes.numel()


class CallDesk:
    """Lays out calls and judges them, in the order of the plan. ``room``: bytes that one of them needs at most."""

    def __init__(self, job: Job, room: int) -> None:
        self.job = job
        self.region = SHIFT + room
        self.ahead = Foresight(job)
        self.starts: dict[int, tuple[int, int]] = {}
        """Region of each call, and how far into it."""
        self.laid: dict[int, Laid] = {}
        self.taken: dict[int, Taken] = {}
        self._left: _Left | None = None
        """What was copied last and is not in ``taken`` yet."""
        self.outputs: dict[int, list[Tensor]] = {}
        self.stable: dict[int, list[int]] = {}
        self.small: dict[tuple[int, int], Tensor] = {}
        """Outputs, by call and number, that the candidate's runner keeps for as long as calls are made."""
        self.flags: dict[str, bool] = {}

    def lay_free(self, following: list[int]) -> list[dict[str, Any]]:
        """Lay out the first of these calls, as far as their regions hold no call that has to be taken yet."""
        laid = []
        for i in following:
            if self._region(i) in [self.starts[n][0] for n in self.laid]:
                break
            laid.append(self.lay(i))
        return laid

    def skip(self, i: int) -> None:
        """A call that was laid out was not made."""
        del self.laid[i]

    def begun(self, i: int) -> bool:
        """Whether a call has been laid out."""
        return i in self.starts

    def lay(self, i: int) -> dict[str, Any]:
        """Write the inputs of call ``i`` into the arena and say where they and the outputs lie.

        The call before it may have to be judged yet. What lies in the same region has been taken.
        """
        known, arena = self.ahead.take(i), self.job.arena
        region, shift = self.starts[i] = self._region(i), self._shift(i)
        cursor = Cursor(self.job.probe_start + region * self.region + shift)
        begin = cursor.offset
        places = []
        for name, stored in known.stored.items():
            place: dict[str, Any] = {
                "name": name,
                "at": cursor.take(stored.numel() * stored.element_size()),
                "shape": list(stored.shape),
                "dtype": str(stored.dtype).removeprefix("torch."),
            }
            if stored.shape != known.values[name].shape:
                place["part"] = list(known.values[name].shape)
            arena.tensor(place["at"], tuple(stored.shape), stored.dtype).copy_(stored)
            places.append(place)
        outputs = []
        empty = cursor.offset
        for name, (shape, dtype) in known.layout.items():
            size = prod(shape) * dtype.itemsize
            outputs.append({"name": name, "at": cursor.take(size), "bytes": size})
        poison(arena, empty, cursor.offset - empty)
        again = []
        room = RECHECK_BYTES
        for number, size in self._sizes_before(i).items():
            if 0 < size <= room:
                again.append({"seq": i - 1, "output": number, "at": cursor.take(size), "bytes": size})
                room -= size
        again += self.again(1, cursor)
        self.laid[i] = Laid(known, begin, cursor.offset, places, outputs, again)
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
        return self.job.rng.randrange(1, SHIFT // ALIGNED) * ALIGNED

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

    def take(
        self,
        i: int,
        returned: int,
        described: list[dict[str, Any]],
        aliases: list[list[int]],
        earlier: list[int],
    ) -> None:
        """Copy what call ``i`` left, so that the candidate's code may run again. :meth:`file` has to follow.

        ``returned``: how many values forward returned; ``described``: the candidate's own words on the first of them;
        ``aliases`` and ``earlier``: which of them lie in an argument, or in an earlier call's output.
        """
        laid = self.laid.pop(i)
        # In one piece: on a GPU one copy takes as long as any of those that it would be made of.
        left = self.job.arena.tensor(laid.begin, (laid.end - laid.begin,), torch.uint8).clone()
        self._left = _Left(i, laid, left, returned, described, aliases, earlier)

    def file(self) -> None:
        """Sort out what was copied last, unless that is done: before anything else is asked of the job, but the
        candidate need not wait for it.
        """
        last, self._left = self._left, None
        if last is None:
            return
        laid, left, known = last.laid, last.bytes, last.laid.known

        def of(place: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            start = place["at"] - laid.begin
            return left[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)

        stored = {p["name"]: of(p, tuple(p["shape"]), DTYPES[p["dtype"]]) for p in laid.places}
        got = {o["name"]: of(o, *known.layout[o["name"]]) for o in laid.outputs}
        base = known.probe.base
        taken = self.taken[last.number] = Taken(
            known,
            last.size,
            got,
            after={name: layouts.part(whole, known.call.shapes[name]) for name, whole in stored.items()},
            stored=stored,
            kept=self._kept(laid.again, [of(a, (a["bytes"],), torch.uint8) for a in laid.again]),
            base=[] if base is None else self.outputs.get(base, []),
            problem=self._structure(known, last.returned, last.described),
            strides=_strides(list(known.layout), last.described),
            aliases=last.aliases,
            earlier=last.earlier,
        )
        if taken.problem is None:
            self._remember(last.number, list(got.values()), last.aliases)

    def waiting(self) -> dict[str, Any]:
        """How many calls were not judged yet, and whether they take as much memory as they may."""
        sizes = [taken.size for taken in self.taken.values()] + ([self._left.size] if self._left else [])
        return {"waiting": len(sizes), "full": sum(sizes) > self._most_bytes()}

    def _most_bytes(self) -> int:
        if self.job.device.type == "cpu":
            return _WAITING_BYTES
        total = torch.cuda.get_device_properties(self.job.device).total_memory
        return max(_WAITING_BYTES, int(_WAITING_SHARE * total))

    def judge_some(self, most: int) -> list[tuple[int, dict[str, Any]]]:
        """What there is to say of the next ``most`` calls that were taken, in their order, up to one that rejects."""
        said: list[tuple[int, dict[str, Any]]] = []
        for i in list(itertools.islice(self.taken, most)):
            try:
                told = self.judge(i)
            except Exception:
                if not said:
                    raise
                break  # what was found before is told first; this call is looked at again then
            del self.taken[i]
            said.append((i, told))
            if not told["ok"] and self.job.probes[i].gating:
                break
        return said

    def judge(self, i: int) -> dict[str, Any]:
        """Compare what was taken of call ``i``."""
        taken = self.taken[i]
        if taken.problem:
            return taken.problem
        known, got, after = taken.known, taken.got, taken.after
        form = self.job.standard.form(known.call)
        names = list(form["outputs"])
        judged, changed = compare.judge_call_and(
            got,
            known.expected,
            known.rules,
            before=known.values,
            after=after,
            mutates=form["mutates"],
            pairs=taken.kept,
        )
        wrong = [j for j in judged if not j.ok]
        note = ""
        baseline_ratio = None
        if known.probe.case_id is not None or wrong:
            baseline = known.baseline
            if baseline is not None:
                baseline_ratio = max((j.max_error_ratio or 0.0 for j in baseline), default=None)
                wrong, note = self.job.standard.beside(judged, baseline, {**after, **got}, known.expected, known.rules)
        between = self._between_rows(known, taken)
        if between and not wrong:
            return {"ok": False, "outcome": "MUTATED", "note": between, "kind": "input_mutation"}
        again = _CHANGED if any(changed) else ""
        if taken.earlier and not again:
            name = names[min(taken.earlier[0], len(names) - 1)]
            again = f"output {name} lies in the memory of an earlier call's output"
        if again and not wrong:
            return {"ok": False, "outcome": "MUTATED", "note": again, "kind": "output_alias"}
        alias = self.alias(taken.aliases, names, form, list(known.values))
        if alias and not wrong:
            return {"ok": False, "outcome": "MUTATED", "note": alias, "kind": "output_alias"}
        self._flag(taken)
        first = wrong[0] if wrong else None
        return {
            "ok": not wrong,
            "outcome": first.outcome if first else "",
            "output": first.name if first else "",
            "judgement": first.as_dict() if first else {},
            "note": (first.note if first else "") or note,
            "skipped": note,
            "strides": taken.strides,
            "limit": self.job.task["tolerance"]["limit"],
            "max_abs_error": _most(j.max_abs_error for j in judged),
            "max_error_ratio": _most(j.max_error_ratio for j in judged),
            "baseline_error_ratio": baseline_ratio,
        }

    def _structure(self, known: Known, returned: int, described: list[dict[str, Any]]) -> dict[str, Any] | None:
        names = list(known.layout)
        if len(described) != len(names) or returned != len(names):
            foreign = next((row["problem"] for row in described if row.get("foreign")), "")
            many = f"{returned} {'values' if foreign else 'tensors'}" if returned else "nothing"
            said = f"forward returned {many}"
            said += f"; the contract has {len(names)}: {', '.join(names)}"
            if foreign:
                said += f". Each must be a torch.Tensor; of the first that is none: {foreign}"
            return {"ok": False, "outcome": "WRONG_SHAPE", "note": said, "output": names[0] if names else ""}
        for name, row in zip(names, described, strict=True):
            shape, dtype = known.layout[name]
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

    def _between_rows(self, known: Known, taken: Taken) -> str:
        """What was written around an argument that is a part of a longer tensor."""
        for name, now in taken.stored.items():
            then, shape = known.stored[name], known.call.shapes[name]
            if then.shape != shape and not compare.same_bits(layouts.with_part(now, then, shape), then):
                return f"memory between the rows of {name} was written: it is a part of a tensor {list(then.shape)}"
        return ""

    def recheck(self, places: list[dict[str, Any]], copied: list[Tensor]) -> str:
        """Whether an output of an earlier call, copied anew just now, is no longer what it was."""
        return "" if all(compare.same_bits(now, then) for now, then in self._kept(places, copied)) else _CHANGED

    def _kept(self, places: list[dict[str, Any]], copied: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Bytes of outputs of earlier calls, as they are now and as they were."""
        pairs = []
        for a, now in zip(places, copied, strict=True):
            kept = self.small.get((a["seq"], a["output"]))
            if kept is None:
                if a["output"] not in self.stable.get(a["seq"], []):
                    continue  # it lies in an argument, which is another call's now, or that call failed
                kept = self.outputs[a["seq"]][a["output"]]
            pairs.append((now, kept.contiguous().reshape(-1).view(torch.uint8)))
        return pairs

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
            # Copies: what was taken lies in one piece with the arguments, which would be kept, too.
            self.small |= {(i, n): got[n].clone() for n in self.stable[i] if got[n].numel()}
        bases = {p.base for p in self.job.probes[i + 1 :] if p.base is not None}
        for old in [n for n in self.outputs if n < i and n not in bases]:
            del self.outputs[old]

    def _flag(self, taken: Taken) -> None:
        """Whether the candidate is repeatable, and gives a row alone what it gives it among others."""
        flags, got, relation = self.flags, list(taken.got.values()), taken.known.probe.relation
        if taken.base and relation == "same_values":
            same = all(compare.same_bits(a, b) for a, b in zip(got, taken.base, strict=True))
            flags["repeatable"] = flags.get("repeatable", True) and same
        elif taken.base and relation == "row":
            lead = [b[tuple(slice(0, n) for n in a.shape)] for a, b in zip(got, taken.base, strict=True)]
            same = all(compare.same_bits(a, b) for a, b in zip(got, lead, strict=True))
            flags["batch_invariant"] = flags.get("batch_invariant", True) and same


def _strides(names: list[str], described: list[dict[str, Any]]) -> str:
    """Of the first output whose elements are no neighbours in memory, by the candidate's words; empty if none is."""
    for name, row in zip(names, described, strict=False):
        if row["last_stride"] != 1:
            return f"output {name} has a last stride of {row['last_stride']}: kernels that read whole rows want 1"
    return ""


def _most(values: Any) -> float | None:
    found = [v for v in values if v is not None]
    return max(found) if found else None
