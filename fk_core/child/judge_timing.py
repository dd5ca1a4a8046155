"""The judge's part in timing: pristine inputs for both sides, the baseline's own captures, and audits of timed work."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fk_core.child import compare, kernels
from fk_core.child.arena import ALIGN, Arena, Cursor, create_arena, poison, spaced, write
from fk_core.child.calls import Call, make_call, output_layout, state_shapes
from fk_core.child.ceilings import Ceilings
from fk_core.child.fill import Fill
from fk_core.child.formulas import evaluate
from fk_core.child.refresh import refreshed, source_of
from fk_core.child.runner import arguments_of, timing_arena
from fk_core.child.timing import Place

if TYPE_CHECKING:
    from fk_core.child.judge import Job

CPU_CALLS = 128
"""Slots of a turn on a CPU: each is called once, so that there is no call whose result is known."""
_CPU_BYTES = 16 << 20
"""Inputs and outputs of so many bytes a side: a fill takes as long as a turn or less."""
_OWN_CACHE_BYTES = 8 << 20
"""More than the cache that one core has to itself."""
SUSPECTS = 3
"""Calls of a replay that differ from the baseline and are judged by the oracle."""
_MEMORY_SHARE = 0.2
_WEIGHT_COPIES = 1.5
"""For each call of a batch, where weights stay where they are."""


class TimingDesk:
    def __init__(self, job: Job, ceilings: Ceilings) -> None:
        self.job, self.ceilings, self.device = job, ceilings, job.device
        self.cases: dict[str, dict[str, Any]] = {}
        self.elsewhere = torch.ones(_OWN_CACHE_BYTES // 4 if self.device.type == "cpu" else 0)

    def handle(self, body: dict[str, Any]) -> dict[str, Any]:
        do = body["do"]
        if do == "timing":
            return self.open_case(body["case"], body["layouts"], body["batch_us"], body["most"])
        if do == "time":
            # What the baseline's graphs hold is nobody's concern.
            return self.job.runner.do_time(self._order(body) | body | {"inspect": False}, [])
        if do == "layouts":
            return self.job.runner.do_layouts(body | {"inspect": False}, [])
        if do == "turn":
            return self.job.runner.do_turn(body, [])
        if do == "eager":
            return self.job.runner.do_eager(self._order(body), [])
        if do == "loop":
            return self.job.runner.do_loop(body, [])
        if do == "refill":
            return self.refill(body["case"])
        if do == "draw":
            return self.draw(body["case"])
        if do == "release":
            return self.release(body["case"], body["side"], body["slots"])
        if do == "audit_take":
            return self.audit_take(body)
        if do == "audit":
            return self.audit(body)
        if do == "audit_loop":
            return self.audit_loop(body["case"], body["slots"])
        if do == "memory_use":
            return self.memory_use(body["case"], body["aliases"], body["earlier"])
        if do == "settle":
            self.ceilings.settle()
            return {}
        if do == "floor":
            return self.floor(body["case"])
        if do == "drop":
            return self.drop(body["case"])
        raise ValueError(f"the judge knows no {do!r}")

    def _order(self, body: dict[str, Any]) -> dict[str, Any]:
        order: dict[str, Any] = self.cases[body["case"]]["order"]
        return order

    def _call(self, case_id: str) -> Call:
        case = self.job.cases[case_id]
        return make_call(
            self.job.task,
            entry=case["entry"],
            form=case["form"],
            dims=case["dims"],
            init=case["init"],
            dtype=case["dtype"],
        )

    def open_case(self, case_id: str, layouts: int, batch_us: float, most: int) -> dict[str, Any]:
        """Lay out a case: how many calls a batch has, and where their inputs lie in either side's arena.

        ``most`` bounds the calls of a batch: more make captures longer.
        """
        call = self._call(case_id)
        cursor = Cursor()
        arguments = []
        for name in call.arguments:
            size = prod(call.shapes[name]) * call.dtype.itemsize
            arguments.append(
                {
                    "name": name,
                    "at": cursor.take(size),
                    "shape": list(call.shapes[name]),
                    "dtype": str(call.dtype).removeprefix("torch."),
                }
            )
        block = max(ALIGN, cursor.offset)
        results = Cursor()
        outputs = [
            {"at": results.take(prod(shape) * dtype.itemsize), "bytes": prod(shape) * dtype.itemsize}
            for shape, dtype in output_layout(self.job.task, call).values()
        ]
        calls = self._calls(call, block, results.offset, layouts, batch_us, most)
        place = Place.at(0, block, calls)
        size = place.end + calls * results.offset + ALIGN
        theirs, ours = create_arena(size, self.device), create_arena(size, self.device)
        key = self.job.key_of(call)
        form = self.job.task["entries"][call.entry]["forms"][call.form]
        order = {
            "do": "time",
            "case": case_id,
            "key": key,
            "copies": {"moved": calls, "unmoved": math.ceil(_WEIGHT_COPIES * calls)},
            "arguments": arguments,
            "pristine": 0,
            "block": block,
            "calls": calls,
            "results": {"at": place.end, "block": results.offset, "outputs": outputs},
            "sampled": [n for n, word in form["mutates"].items() if word == "must"],
        }
        self.cases[case_id] = {
            "call": call,
            "order": order,
            "taken": [],
            "theirs": theirs,
            "ours": ours,
            "place": place,
            "key": key,
        }
        self.job.runner.arenas[timing_arena(case_id)] = ours
        self.job.prepare_baseline(key)
        (self.refill if self.device.type == "cuda" else self.draw)(case_id)
        return {"order": order, "size": theirs.size, "fds": [theirs.export()]}

    def _calls(self, call: Call, block: int, results: int, layouts: int, batch_us: float, most: int) -> int:
        """How many slots: ``block`` bytes of inputs each, ``results`` bytes of outputs."""
        if self.device.type == "cpu":
            return max(2, min(CPU_CALLS, _CPU_BYTES // (block + results)))
        assert self.ceilings.bandwidth
        guess_us = max(1.5, self._bytes(call) / self.ceilings.bandwidth * 1e6)
        free, _ = torch.cuda.mem_get_info(self.device)
        weights = sum(prod(shape) for shape in state_shapes(self.job.task, call).values()) * call.dtype.itemsize
        # In each of two processes: pristine inputs and results; in each layout the same, slots and outputs; and weight
        # copies.
        each = block + results + layouts * (2 * block + 2 * results) + _WEIGHT_COPIES * weights
        fits = int(free * _MEMORY_SHARE / max(1, each))
        return max(2, min(most, math.ceil(batch_us / guess_us), max(2, fits)))

    def _bytes(self, call: Call) -> float:
        form = self.job.task["entries"][call.entry]["forms"][call.form]
        return float(evaluate(form["bytes"], {**call.dims, "itemsize": call.dtype.itemsize}))

    def floor(self, case_id: str) -> dict[str, Any]:
        """The least time of a call, from what must come from device memory: all that is no activation just written."""
        call = self._call(case_id)
        task = self.job.task
        entry = task["entries"][call.entry]
        cold = sum(
            prod(shape) * call.dtype.itemsize
            for name, shape in state_shapes(task, call).items()
            if entry["state"][name]["residency"] == "cold"
        )
        held = 0
        if self.device.type == "cuda":
            held = int(getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0))
        moved = self._bytes(call)
        # What fits in the cache may have been left there; what does not must move.
        least = max(cold, moved - held) if moved > held else cold
        flops = float(evaluate(entry["forms"][call.form]["flops"], {**call.dims, "itemsize": call.dtype.itemsize}))
        return {"floor_us": self.ceilings.floor_us(cold_bytes=least, flops=flops)}

    def draw(self, case_id: str) -> dict[str, Any]:
        """New secret values for every slot, kept here until they are released."""
        case = self.cases[case_id]
        seed = self.job.rng.getrandbits(62)
        slots, make_inputs = case["place"].calls, self.job.oracle.make_inputs
        case["fill"] = Fill(self.job.task, case["call"], slots, make_inputs, seed, self.device)
        return {}

    def release(self, case_id: str, side: str, slots: list[int]) -> dict[str, Any]:
        """Write the values of these slots into one side's arena, and have no outputs there any more."""
        case = self.cases[case_id]
        arena, place, results = case[side], case["place"], case["order"]["results"]
        for slot in slots:
            values = case["fill"].slot(slot)
            for argument in case["order"]["arguments"]:
                write(arena, place.pristine + slot * place.block + argument["at"], values[argument["name"]])
            if results["block"]:
                poison(arena, results["at"] + slot * results["block"], results["block"])
        self._settle(len(slots) * (place.block + results["block"]))
        return {}

    def _settle(self, written: int) -> None:
        """All that was written is there, and no nearer to the core of either side."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        else:
            # What was just written leaves this core's own cache, so that neither side finds its inputs nearer.
            self.elsewhere[: max(_OWN_CACHE_BYTES // 4, 2 * written) // 4].sum()

    def refill(self, case_id: str) -> dict[str, Any]:
        """New secret values for every slot, the same on both sides, drawn once and written many at a time."""
        self.draw(case_id)
        case = self.cases[case_id]
        arenas, fill = (case["theirs"], case["ours"]), case["fill"]
        place, results = case["place"], case["order"]["results"]
        for first in range(0, place.calls, fill.group):
            start = place.pristine + first * place.block
            values = fill.neighbours(first)
            for argument in case["order"]["arguments"]:
                made = values[argument["name"]]
                for arena in arenas:
                    at = start + argument["at"]
                    spaced(arena, at, place.block, len(made), tuple(made.shape[1:]), made.dtype).copy_(made)
        for arena in arenas:
            if results["block"]:
                poison(arena, results["at"], place.calls * results["block"])
        self._settle(len(arenas) * place.calls * (place.block + results["block"]))
        return {}

    def audit_take(self, body: dict[str, Any]) -> dict[str, Any]:
        """Copy what a replay of the candidate's left, before its code runs again: the gates' samples, and all that the
        call of slot ``whole`` returned. Copies are judged in the order in which they were taken.

        ``fresh``, where it was a timed replay: what its inputs followed from. The baseline replays the same at once.
        """
        case = self.cases[body["case"]]
        taken = {"whole": body["whole"], "left": self._left(case, body["whole"]), "fill": case["fill"], "fresh": None}
        taken["sampled"] = self._sampled(case, "theirs")
        if "fresh" in body:
            one = {"case": body["case"], "layout": body["layout"]}
            turn = {"kind": "full", "prime": 0, "timed": 1, "fresh": body["fresh"]}
            self.job.runner.do_turn(one | turn, [])
            self.job.runner.do_samples(one, [])
            taken |= {"fresh": body["fresh"], "beside": self._sampled(case, "ours")}
        case["taken"].append(taken)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return {}

    def audit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Compare what was taken of the candidate's replay with what the same calls must give.

        The baseline replays the same layout on the same inputs, so that every call is looked at; the oracle then judges
        the calls whose samples are far from the baseline's. ``slots``: the order in which the candidate says that its
        layout calls its slots.
        """
        case = self.cases[body["case"]]
        taken, order = case["taken"].pop(0), body["slots"]
        standard, slot = self.job.standard, taken["whole"]
        captured = self.job.runner.timers[body["case"]].layouts[body["layout"]].order
        if order != captured:
            return {"wrong": len(captured), "checked": len(captured)}
        found = standard.first_wrong(case["call"], case["key"], self._given(case, taken, order, slot), taken["left"])
        if found is not None:
            return {"wrong": 1, "checked": 1, **self._said(found)}
        if taken["fresh"] is None:
            turn = {
                "case": body["case"],
                "layout": body["layout"],
                "kind": "full",
                "prime": 0,
                "timed": 1,
                "fill": True,
            }
            self.job.runner.do_turn(turn, [])
            taken["beside"] = self._sampled(case, "ours")
        apart = torch.zeros(case["place"].calls, dtype=torch.float64)
        for theirs, ours in zip(taken["sampled"], taken["beside"], strict=True):
            apart += _share_apart(theirs, ours)
        # Behind gate n stands call n - 1; the last call is sampled into the row of the first gate.
        suspects = sorted((n for n in range(len(order)) if apart[order[n]] > 0), key=lambda n: -apart[order[n]])
        looked = suspects[:SUSPECTS]
        judged = [w for n in looked if (w := self._wrong(case, order, n, body["sample_seed"], taken)) is not None]
        return {
            "wrong": len(suspects) if looked and len(judged) == len(looked) else len(judged),
            "checked": len(order),
            **(self._said(judged[0]) if judged else {}),
        }

    def _sampled(self, case: dict[str, Any], side: str) -> list[Tensor]:
        """Copies of what the gates of either side have sampled of the first two outputs, or of the only one twice."""
        dtypes = [dtype for _, dtype in output_layout(self.job.task, case["call"]).values()]
        return [_samples(case[side], case["place"], n, dtype).clone() for n, dtype in enumerate((dtypes * 2)[:2])]

    def _given(self, case: dict[str, Any], taken: dict[str, Any], order: list[int], slot: int) -> dict[str, Tensor]:
        """The arguments that a slot held in a replay."""
        fill, fresh = taken["fill"], taken["fresh"]
        if fresh is None:
            return dict(fill.slot(slot))
        values = fill.slot(source_of(slot, len(order), fresh))
        return refreshed(values, arguments_of(case["order"]), case["place"].block, slot, fresh)

    def _said(self, found: compare.Judgement) -> dict[str, Any]:
        """What the parent is told of an output that is wrong, for the report."""
        return {"output": found.name, "judgement": found.as_dict(), "limit": self.job.task["tolerance"]["limit"]}

    def _wrong(
        self, case: dict[str, Any], order: list[int], n: int, sample_seed: int, taken: dict[str, Any]
    ) -> compare.Judgement | None:
        """What the oracle, too, calls wrong of the samples behind gate ``n``."""
        call, gate = case["call"], order[n]
        standard, given, sampled = self.job.standard, self._given(case, taken, order, order[n - 1]), taken["sampled"]
        expected, rules = standard.references(call, case["key"], given), standard.rules(call, generic=False)
        names = list(output_layout(self.job.task, call).items())
        for number, (name, (shape, dtype)) in enumerate((names * 2)[:2]):
            words = prod(shape) * dtype.itemsize // 4
            if not words:
                continue
            at = torch.tensor(kernels.positions(sample_seed + gate, words), device=self.device)
            each = 4 // dtype.itemsize
            picks = (at[:, None] * each + torch.arange(each, device=self.device)).reshape(-1)
            ref, mag = expected[name]
            chosen = ref.reshape(-1)[picks], None if mag is None else mag.reshape(-1)[picks]
            judged = compare.judge(name, sampled[number][gate], *chosen, rules[name])
            if judged.ok:
                continue
            baseline = standard.of_baseline(call, case["key"], given, expected, rules) or []
            beside = next((j for j in baseline if j.name == name), None)
            if beside is not None and not beside.ok:
                continue
            if beside is not None:
                judged = compare.judge(name, sampled[number][gate], *chosen, rules[name].beside(beside))
            if not judged.ok:
                return _of_whole(judged, picks, shape)
        return None

    def audit_loop(self, case_id: str, slots: list[int]) -> dict[str, Any]:
        """What is wrong with the timed calls of ``slots``: ``values`` of an output, a changed ``input``, or nothing."""
        case = self.cases[case_id]
        call, place = case["call"], case["place"]
        for slot in slots:
            begin = place.pristine + slot * place.block
            after = {
                a["name"]: case["theirs"].tensor(begin + a["at"], tuple(a["shape"]), call.dtype)
                for a in case["order"]["arguments"]
            }
            given = case["fill"].slot(slot)
            found = self.job.standard.first_wrong(call, case["key"], given, self._left(case, slot), after)
            if found is not None:
                kind = "input" if found.outcome == "MUTATED" else "values"
                return {"wrong": kind, "name": found.name, **self._said(found)}
        return {"wrong": "", "name": ""}

    def memory_use(self, case_id: str, aliases: list[list[int]], earlier: list[int]) -> dict[str, Any]:
        """What is wrong with the memory that the last timed calls used, by the candidate's own words on it."""
        call = self.cases[case_id]["call"]
        form, outputs = self.job.standard.form(call), list(output_layout(self.job.task, call))
        if earlier:
            said = f"output {outputs[min(earlier[0], len(outputs) - 1)]} lies in the memory of an earlier call's output"
            return {"wrong": "alias", "name": said}
        said = self.job.calls.alias(aliases, outputs, form, list(call.arguments))
        return {"wrong": "alias" if said else "", "name": said}

    def _left(self, case: dict[str, Any], slot: int) -> dict[str, Tensor | None]:
        """What the candidate left where the outputs of a slot go, read once."""
        results = case["order"]["results"]
        start = results["at"] + slot * results["block"]
        layout = output_layout(self.job.task, case["call"])
        return {
            name: case["theirs"].tensor(start + place["at"], shape, dtype).clone()
            for place, (name, (shape, dtype)) in zip(results["outputs"], layout.items(), strict=True)
        }

    def drop(self, case_id: str) -> dict[str, Any]:
        self.job.runner.do_drop({"case": case_id}, [])
        case = self.cases.pop(case_id, None)
        if case:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            for arena in (case["theirs"], case["ours"]):
                arena.close()
        return {}


def _samples(arena: Arena, place: Place, number: int, dtype: torch.dtype) -> Tensor:
    """Samples of one output behind each slot's gate: [calls, values]."""
    raw = arena.tensor(place.samples, (place.calls, 2, kernels.SAMPLES), torch.int32)[:, number].contiguous()
    return raw.view(dtype)


def _of_whole(judged: compare.Judgement, picks: Tensor, shape: tuple[int, ...]) -> compare.Judgement:
    """What was said of samples, of the whole output: where its first wrong element lies there."""
    first = judged.first_mismatch
    if first is not None:
        at = int(picks[first["index"][0]])
        index = [int(n) for n in torch.unravel_index(torch.tensor(at), shape)]
        note = "; ".join(filter(None, (first["note"], "of the elements that were sampled")))
        first = {**first, "index": index, "note": note}
    return replace(judged, first_mismatch=first, share_wrong=None, pattern="")


def _share_apart(one: Tensor, other: Tensor) -> Tensor:
    """Row by row, the share of samples that differ by more than two right answers may; the oracle has the last word."""
    a, b = one.double(), other.double()
    if not one.is_floating_point():
        return (a != b).double().mean(dim=1).cpu()
    near = 2.0**-5 if one.element_size() == 2 else 2.0**-10
    scale = b.nan_to_num(0.0, 0.0, 0.0).square().mean(dim=1, keepdim=True).sqrt()
    apart = (a - b).abs() > near * b.abs() + near / 8 * scale
    apart |= a.isfinite() != b.isfinite()
    return apart.double().mean(dim=1).cpu()
