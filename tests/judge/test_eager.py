"""Timed calls one by one, with judge and runner in one process on the CPU: what they do, and which faults are seen."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.child.calls import make_call
from fk_core.child.fill import USUAL, Fill
from fk_core.eager import _fault
from fk_core.records.claims import HeldClaim
from tests.judge.court import CATALOG, CPU, Court, Forward, Wrap, case_of, honest

WHICH = [("rms_norm", "plain"), ("rms_norm", "residual"), ("silu_and_mul", "plain"), ("softmax", "plain")]


class Timed:
    """One case, laid out for timing on both sides and ready for turns."""

    def __init__(self, op: str, form: str, wrap: Wrap = honest) -> None:
        spec = CATALOG.get(op)
        self.case = case_of(spec, form)
        self.court = Court(op, wrap, cases=[self.case])
        self.desk = self.court.job.timing
        opened = self.desk.open_case(self.case.id, 2, 100.0, 40)
        self.laid, self.order = self.desk.cases[self.case.id], opened["order"]
        runner = self.court.runner
        runner.do_arena({"name": f"timing/{self.case.id}", "size": opened["size"]}, opened["fds"])
        runner.do_make(self.court.modules[self.order["key"]], [])
        runner.do_time(self.order | {"seeds": [], "plain": 0, "inspect": False}, [])
        self.slots = self.order["calls"]

    def turn(self, slots: list[int], keep: int = 4) -> int:
        """How many calls were made."""
        self.desk.draw(self.case.id)
        self.desk.release(self.case.id, "theirs", slots)
        told = self.court.runner.do_loop({"case": self.case.id, "order": list(slots), "keep": keep}, [])
        return int(told["made"])

    def held(self) -> HeldClaim:
        return HeldClaim.model_validate(self.court.runner.do_held({"case": self.case.id}, []))

    def audit(self, slots: list[int]) -> dict[str, Any]:
        told = self.desk.audit_loop(self.case.id, slots)
        if told["wrong"]:
            return told
        held = self.held()
        return self.desk.memory_use(self.case.id, held.aliases, held.earlier)

    def close(self) -> None:
        self.court.close()


Make = Callable[..., Timed]


@pytest.fixture
def timed() -> Iterator[Make]:
    made: list[Timed] = []

    def begin(*which: Any) -> Timed:
        made.append(Timed(*which))
        return made[-1]

    yield begin
    for one in made:
        one.close()


# -- honest ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", WHICH)
def test_the_right_function(timed: Make, which: tuple[str, str]) -> None:
    made = timed(*which)
    for _ in range(3):
        made.turn([3, 0, 2])
        assert made.audit([0, 2, 3]) == {"wrong": "", "name": ""}


@pytest.mark.parametrize("which", WHICH)
def test_outputs_are_there_when_the_turn_ends(timed: Make, which: tuple[str, str]) -> None:
    """What is not called in a turn has no outputs in it, even if it had some before."""
    made = timed(*which)
    made.turn([0, 1, 2, 3])
    assert made.audit([2])["wrong"] == ""
    made.desk.draw(made.case.id)
    made.desk.release(made.case.id, "theirs", [0, 1, 2, 3])
    made.court.runner.do_loop({"case": made.case.id, "order": [0, 1, 3], "keep": 2}, [])
    assert made.audit([2])["wrong"] == "values"
    assert made.audit([3])["wrong"] == ""


def test_an_idle_turn_makes_no_call_and_still_delivers(timed: Make) -> None:
    calls = []

    def counting(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def called(*inputs: Tensor) -> Any:
            calls.append(1)
            return forward(*inputs)

        return called

    made = timed("silu_and_mul", "plain", counting)
    made.turn([0])
    before = len(calls)
    made.desk.release(made.case.id, "theirs", [0, 1])
    made.court.runner.do_loop({"case": made.case.id, "order": [0, 1], "keep": 2, "idle": True}, [])
    assert len(calls) == before
    assert made.desk.audit_loop(made.case.id, [0])["wrong"] == "", "the same outputs again"
    assert made.desk.audit_loop(made.case.id, [1])["wrong"] == "values"


def test_an_input_is_the_same_object_again(timed: Make) -> None:
    """As in an engine, whose buffers stay; the judge's writes do not move the version."""
    seen: list[tuple[int, int, float]] = []

    def watching(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def called(*inputs: Tensor) -> Any:
            seen.append((id(inputs[0]), inputs[0]._version, float(inputs[0].reshape(-1)[0])))
            return forward(*inputs)

        return called

    made = timed("softmax", "plain", watching)
    made.turn([1])
    made.turn([1])
    one, two = seen[-2:]
    assert one[:2] == two[:2]
    assert one[2] != two[2]


# -- faults ------------------------------------------------------------------------------------------------------------


def stale(forward: Forward, state: dict[str, Tensor]) -> Forward:
    kept: dict[int, Any] = {}
    return lambda *inputs: kept.setdefault(inputs[0].data_ptr(), forward(*inputs))


def one_element(forward: Forward, state: dict[str, Tensor]) -> Forward:
    def called(*inputs: Tensor) -> Any:
        out = forward(*inputs)
        first = out[0] if isinstance(out, tuple) else out
        first.view(-1)[-1] = first.view(-1)[-1] * 2 + 1
        return out

    return called


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("fault", [stale, one_element])
def test_wrong_values(timed: Make, which: tuple[str, str], fault: Wrap) -> None:
    made = timed(*which, fault)
    made.turn([0, 1])
    made.turn([0, 1])
    told = made.audit([1])
    assert (told["wrong"], told["name"]) == ("values", "y")
    said = _fault(told, made.case.id)
    assert said.mismatch is not None
    assert (said.mismatch.output, said.mismatch.note) == ("y", "in a timed call")
    assert re.search(
        rf"were right before\. y: (first wrong|largest error) at {re.escape(str(said.mismatch.index))}:", said.reason
    )
    assert said.evidence[0].what == said.reason


@pytest.mark.parametrize(
    "answer",
    [
        lambda y: None,
        lambda y: y.tolist(),
        lambda y: y[..., :1],
        lambda y: y.double(),
        lambda y: y.to("meta"),
        lambda y: torch.nn.Parameter(y, requires_grad=False),
    ],
)
def test_answers_that_are_no_such_tensor(timed: Make, answer: Callable[[Tensor], Any]) -> None:
    made = timed("silu_and_mul", "plain", lambda forward, state: lambda x: answer(forward(x)))
    made.turn([0, 1])
    assert made.audit([0])["wrong"] == "values"


def test_an_argument_that_changes(timed: Make) -> None:
    def changing(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def called(x: Tensor) -> Any:
            out = forward(x)
            x.view(-1)[-1] = 7.0
            return out

        return called

    made = timed("silu_and_mul", "plain", changing)
    made.turn([0, 1])
    told = made.audit([1])
    assert (told["wrong"], told["name"]) == ("input", "x")
    mismatch = _fault(told, made.case.id).mismatch
    assert mismatch is not None
    assert mismatch.got == 7.0


def test_scratch_that_changes_is_allowed(timed: Make) -> None:
    """With a residual the contract lets both arguments be overwritten."""

    def in_place(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def called(x: Tensor, residual: Tensor) -> Any:
            y, total = forward(x, residual)
            return x.copy_(y), residual.copy_(total)

        return called

    made = timed("rms_norm", "residual", in_place)
    made.turn([0, 1, 0])
    assert made.held().aliases == [[0, 0], [1, 1]]
    made.turn([0, 1])
    assert made.audit([0, 1])["wrong"] == ""


def test_one_buffer_for_all_outputs(timed: Make) -> None:
    def static(forward: Forward, state: dict[str, Tensor]) -> Forward:
        buffer: list[Tensor] = []

        def called(x: Tensor) -> Tensor:
            out = forward(x)
            if not buffer:
                buffer.append(torch.empty_like(out))
            return buffer[0].copy_(out)

        return called

    made = timed("silu_and_mul", "plain", static)
    made.turn([0, 1, 2])
    told = made.audit([1])
    assert told["wrong"] == "alias"
    assert "earlier call" in told["name"]
    assert _fault(told, made.case.id).mismatch is None


def test_an_output_in_the_memory_of_an_argument(timed: Make) -> None:
    def aliased(forward: Forward, state: dict[str, Tensor]) -> Forward:
        return lambda x: x.copy_(forward(x))

    made = timed("softmax", "plain", aliased)
    made.turn([0])
    assert made.held().aliases == [[0, 0]]
    made.turn([0])
    assert made.audit([0])["wrong"] in ("input", "alias")


@pytest.mark.parametrize(("keep", "seen"), [(2, False), (6, True)])
def test_a_ring_of_four_shows_where_more_are_kept(timed: Make, keep: int, seen: bool) -> None:
    def ring(forward: Forward, state: dict[str, Tensor]) -> Forward:
        buffers: list[Tensor] = []

        def called(x: Tensor) -> Tensor:
            out = forward(x)
            if len(buffers) < 4:
                buffers.append(torch.empty_like(out))
            buffers.append(buffers.pop(0))
            return buffers[-1].copy_(out)

        return called

    made = timed("silu_and_mul", "plain", ring)
    made.turn([0, 1, 2, 3, 4, 5, 6, 7], keep)
    assert bool(made.held().earlier) is seen


# -- the loop itself ---------------------------------------------------------------------------------------------------


def lead_out(found: Callable[[Any, list[int]], None]) -> Wrap:
    """Each call walks the frames to the timed case and the order of its turn, as code of a candidate's can."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def called(*inputs: Tensor) -> Any:
            frame: Any = sys._getframe()
            while frame is not None and frame.f_code.co_name != "turn":
                frame = frame.f_back
            if frame is not None:
                found(frame.f_locals["self"], frame.f_locals["order"])
            return forward(*inputs)

        return called

    return wrap


def test_a_call_that_empties_the_order_ends_nothing(timed: Make) -> None:
    calls = []

    def emptied(case: Any, order: list[int]) -> None:
        calls.append(1)
        del order[1:]

    made = timed("silu_and_mul", "plain", lead_out(emptied))
    calls.clear()
    assert made.turn([3, 0, 2]) == 3
    assert len(calls) == 3
    assert made.audit([0, 2, 3])["wrong"] == ""


def test_whoever_ends_the_loop_is_counted(timed: Make) -> None:
    """The garbage collector leads to what the loop runs over; not to its count."""

    def ended(case: Any, order: list[int]) -> None:
        for found in gc.get_objects():
            if type(found) is type(iter(())) and found.__reduce__()[1:2] == ((3, 0, 2),):
                list(found)

    made = timed("silu_and_mul", "plain", lead_out(ended))
    for found in ({"order": [3, 0, 2]}, {"order": [1, 0]}):
        asked = {"case": made.case.id, "keep": 2, **found}
        assert made.court.runner.do_loop(asked, [])["made"] <= len(found["order"])


def test_stop_iteration_is_an_error_like_others(timed: Make) -> None:
    stopping = [False]

    def stop(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def called(*inputs: Tensor) -> Any:
            if stopping[0]:
                raise StopIteration
            return forward(*inputs)

        return called

    made = timed("softmax", "plain", stop)
    stopping[0] = True
    with pytest.raises(RuntimeError, match="StopIteration"):
        made.turn([0, 1])


# -- values ------------------------------------------------------------------------------------------------------------


def filled(op: str, form: str, seed: int) -> Fill:
    case = case_of(CATALOG.get(op), form)
    task = CATALOG.get(op).model_dump(mode="json")
    call = make_call(task, entry=case.entry, form=form, dims=case.dims, init=case.init, dtype=case.dtype)
    return Fill(task, call, 20, lambda call, draw: {name: draw(name) for name in call.arguments}, seed, CPU)


@pytest.mark.parametrize("which", WHICH)
def test_slots_have_values_of_their_own_that_come_again(which: tuple[str, str]) -> None:
    fill, same, other = (filled(*which, seed) for seed in (1, 1, 2))
    for name in fill.slot(0):
        tensors = [fill.slot(n)[name] for n in range(20)]
        assert all(torch.equal(a, same.slot(n)[name]) for n, a in enumerate(tensors))
        assert not torch.equal(tensors[3], other.slot(3)[name])
        rows = torch.cat([t.reshape(-1, t.shape[-1]) for t in tensors])
        assert len(torch.unique(rows, dim=0)) == len(rows), "no row comes twice"
        usual = torch.stack([tensor for n, tensor in enumerate(tensors) if fill.look(n) == USUAL])
        assert 0.7 < float(usual.float().std()) < 1.3


def test_two_arguments_have_different_values() -> None:
    slot = filled("rms_norm", "residual", 3).slot(0)
    assert not torch.equal(slot["x"], slot["residual"])


def test_the_arenas_are_given_back(timed: Make) -> None:
    made = timed("softmax", "plain")
    before = len(os.listdir("/proc/self/fd"))
    made.turn([0])
    made.court.runner.do_drop({"case": made.case.id}, [])
    made.desk.drop(made.case.id)
    assert len(os.listdir("/proc/self/fd")) < before


def cut(made: list[Tensor]) -> Any:
    return tuple(output[..., :1] for output in made)


RETURNED: dict[str, Callable[[list[Tensor]], Any]] = {
    "nothing": lambda made: None,
    "numbers": lambda made: tuple(0.0 for _ in made),
    "another size": cut,
    "one more": lambda made: (*made, made[0].clone()),
}


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("which", WHICH)
def test_results_that_are_written_and_not_returned(timed: Make, which: tuple[str, str], returned: str) -> None:
    """Saves the allocation and the copy, which are taken off all the same."""
    cheating, slot = [False], [0]
    where: list[Any] = []

    def into(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def called(*given: Tensor) -> Any:
            result = forward(*given)
            if not cheating[0]:
                return result
            outputs = list(result) if isinstance(result, tuple) else [result]
            arena, results = where
            for place, output in zip(results["outputs"], outputs, strict=True):
                at = results["at"] + slot[0] * results["block"] + place["at"]
                arena.tensor(at, tuple(output.shape), output.dtype).copy_(output)
            return RETURNED[returned](outputs)

        return called

    made = timed(*which, into)
    where += [made.court.runner.arenas[f"timing/{made.case.id}"], made.order["results"]]
    slot[0] = 2
    made.turn([2])
    assert made.audit([2])["wrong"] == ""
    cheating[0] = True
    made.desk.draw(made.case.id)
    made.desk.release(made.case.id, "theirs", [2])
    made.court.runner.do_loop({"case": made.case.id, "order": [2], "keep": 2}, [])
    assert made.desk.audit_loop(made.case.id, [2])["wrong"] == "values"
