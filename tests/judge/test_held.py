"""Outputs that have to live longer than the next few calls: honest functions, and each way of reusing memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.child import held
from fk_core.records.claims import HoldClaim
from fk_core.records.task import CaseSpec
from tests.judge.court import CATALOG, Court, Forward, Wrap, case_of, honest

OPS = ("rms_norm", "silu_and_mul", "softmax")
Sit = Callable[..., Court]


@pytest.fixture
def sit() -> Iterator[Sit]:
    courts: list[Court] = []

    def begin(op: str, wrap: Wrap = honest, *, form: str = "plain", cases: list[CaseSpec] | None = None) -> Court:
        courts.append(Court(op, wrap, cases=cases or [case_of(CATALOG.get(op), form)]))
        return courts[-1]

    yield begin
    for court in courts:
        court.close()


def ring(size: int) -> Wrap:
    """The right values, in one of ``size`` buffers in turn."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        buffers: dict[Any, list[Tensor]] = {}
        turn = [0]

        def reuse(x: Tensor) -> Tensor:
            y = forward(x)
            mine = buffers.setdefault((y.shape, y.dtype), [torch.empty_like(y) for _ in range(size)])
            turn[0] += 1
            return mine[turn[0] % size].copy_(y)

        return reuse

    return wrap


def silent(answer: dict[str, Any]) -> dict[str, Any]:
    return answer | {"shared": []}


@pytest.mark.parametrize("op", OPS)
def test_new_memory_is_right(sit: Sit, op: str) -> None:
    for number in range(len(sit(op).job.held.shapes)):
        assert sit(op).hold(number, 80)["ok"]


def test_in_place_where_the_contract_allows_it(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def fused(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            y, total = forward(x, residual)
            return x.copy_(y), residual.copy_(total)

        return fused

    assert sit("rms_norm", wrap, form="residual").hold(0, 100)["ok"]


def test_slices_of_one_block_are_right(sit: Sit) -> None:
    """An allocator of its own that never gives the same bytes twice."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        block, used = torch.empty(4 << 20), [0]

        def pooled(x: Tensor) -> Tensor:
            y = forward(x)
            if y.dtype != block.dtype:
                return y
            start, used[0] = used[0], used[0] + y.numel()
            return block[start : used[0]].view(y.shape).copy_(y)

        return pooled

    court = sit("softmax", wrap)
    assert court.hold(0, 112)["ok"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [2, 40, 64, 79])
@pytest.mark.parametrize("change", [dict, silent], ids=["told", "silent"])
def test_rings_of_buffers(sit: Sit, op: str, size: int, change: Any) -> None:
    """Seen in the bytes, whatever the process says."""
    told = sit(op, ring(size)).hold(0, 80, change)
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")
    assert "calls" in told["note"]


def test_the_claim_counts_where_the_bytes_are_right(sit: Sit) -> None:
    told = sit("softmax").hold(0, 90, lambda answer: answer | {"shared": [[3, 67]]})
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")
    assert "calls 4 and 68 of 90" in told["note"]
    assert sit("softmax").hold(0, 90, lambda answer: answer | {"shared": [[3, 4000]]})["ok"]


def test_a_call_that_computes_nothing(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        calls = [0]

        def lazy(x: Tensor) -> Tensor:
            calls[0] += 1
            y: Tensor = forward(x)
            return torch.full_like(y, calls[0]) if calls[0] == 70 else y

        return lazy

    told = sit("silu_and_mul", wrap).hold(0, 80)
    assert told["outcome"] == "WRONG_VALUES"
    assert told["note"].startswith("call 70 of 80")


@pytest.mark.parametrize("what", ["nothing", "another shape", "too few"])
def test_no_output_at_all(sit: Sit, what: str) -> None:
    made = {"nothing": lambda y: None, "another shape": lambda y: y[..., :1], "too few": lambda y: []}[what]
    told = sit("silu_and_mul", lambda forward, state: lambda x: made(forward(x))).hold(0, 80)
    assert not told["ok"]


def test_an_argument_is_changed(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def greedy(x: Tensor) -> Any:
            y = forward(x)
            x[..., 0] += 1
            return y

        return greedy

    told = sit("softmax", wrap).hold(0, 80)
    assert told["outcome"] == "MUTATED"
    assert "x" in told["note"]


def test_an_output_of_a_single_call_is_overwritten_much_later(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        kept: list[Tensor] = []

        def vandal(x: Tensor) -> Tensor:
            y: Tensor = forward(x)
            kept.append(y)
            if len(kept) > 60:
                for old in kept[:20]:
                    old.zero_()
            return y

        return vandal

    court = sit("silu_and_mul", wrap)
    relations = [i for i, p in enumerate(court.job.probes) if not p.relation and p.case_id is None and not p.hidden]
    for i in relations[:20]:
        assert court.call(i)["ok"]
    told = court.hold(0, 90)
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")
    assert "earlier call" in told["note"]


def test_rings_are_seen_in_single_calls_too(sit: Sit) -> None:
    """Small outputs are kept for as long as calls are made."""
    told = sit("silu_and_mul", ring(12)).run(lambda answer: answer | {"earlier": []})
    assert told is not None
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")


def test_what_is_too_large_is_not_held(sit: Sit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MOST_BYTES", 1000)
    assert sit("softmax").job.held.told() == []


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("rms_norm", {"tokens": 1, "hidden": 128}),
        ("silu_and_mul", {"tokens": 1, "inter": 512}),
        ("softmax", {"rows": 1, "cols": 4}),
    ],
)
def test_the_smallest_shape_comes_first(op: str, dims: dict[str, int]) -> None:
    """A row of an interpreted kernel takes milliseconds, and a hundred calls are made."""
    court = Court(op)
    shapes = court.job.held.told()
    assert {shape["form"] for shape in shapes} == set(court.spec.entries[shapes[0]["entry"]].forms)
    assert shapes[0]["dims"] == dims
    court.close()


@pytest.mark.parametrize("pairs", [[[1]], [[1, 2, 3]], [[-1, 2]], [["1", 2]], [[0, 5000]], [[0, 1]] * 65])
def test_malformed_claims(pairs: Any) -> None:
    with pytest.raises(ValueError, match="shared"):
        HoldClaim.model_validate({"shared": pairs})


def test_a_ring_of_large_outputs_is_seen(sit: Sit) -> None:
    """The runner lets go of large outputs soon, so that only holding them shows it."""
    case = next(c for c in CATALOG.get("silu_and_mul").cpu_cases if c.dims["tokens"] * c.dims["inter"] > 32768)
    court = sit("silu_and_mul", ring(16), cases=[case])
    large = [n for n, shape in enumerate(court.job.held.told()) if shape["large"]]
    assert large, "no case of this operator has outputs that large: nothing is tested"
    told = court.hold(large[0], 72)
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")


# -- as one call, and call by call -------------------------------------------------------------------------------------

FORMS = [("rms_norm", "plain"), ("rms_norm", "residual"), ("silu_and_mul", "plain"), ("softmax", "plain")]


def alone(court: Court) -> Court:
    """The task does not say that rows are independent."""
    for entry in court.job.task["entries"].values():
        for form in entry["forms"].values():
            form.update(rows="", leading="")
    return court


def at(number: int, change: Callable[[list[Tensor], Tensor, list[list[Tensor]]], None]) -> Wrap:
    """``change`` gets outputs, first argument and all earlier outputs of call ``number``, counted from 1."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        kept: list[list[Tensor]] = []

        def called(*given: Tensor) -> Any:
            result = forward(*given)
            outputs = list(result) if isinstance(result, tuple) else [result]
            kept.append(outputs)
            if len(kept) == number:
                change(outputs, given[0], kept)
            return result

        return called

    return wrap


def one_element(outputs: list[Tensor], x: Tensor, kept: list[list[Tensor]]) -> None:
    last = outputs[-1].view(-1)
    last[-1] = last[-1] * 2 + 1


def overwrite(outputs: list[Tensor], x: Tensor, kept: list[list[Tensor]]) -> None:
    kept[20][-1].copy_(outputs[-1])


def change_input(outputs: list[Tensor], x: Tensor, kept: list[list[Tensor]]) -> None:
    x.view(-1)[-1] += 1


@pytest.mark.parametrize(("group", "evaluated"), [(80, [80]), (32, [32, 32, 16])])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_right_calls_are_judged_many_at_once(
    sit: Sit, monkeypatch: pytest.MonkeyPatch, op: str, form: str, group: int, evaluated: list[int]
) -> None:
    court = sit(op, form=form)
    monkeypatch.setitem(held.AT_ONCE, "cpu", group * court.job.held.lay(0, 80)["step"])
    evaluations: list[tuple[int, ...]] = []
    reference = court.job.oracle.reference

    def counted(call: Any, state: Any, values: dict[str, Tensor]) -> Any:
        evaluations.append(tuple(next(iter(values.values())).shape))
        return reference(call, state, values)

    monkeypatch.setattr(court.job.oracle, "reference", counted)
    assert court.hold(0, 80)["ok"]
    rows = court.job.held.laid["call"].shapes["x"][0]
    assert [shape[0] for shape in evaluations] == [calls * rows for calls in evaluated]
    evaluations.clear()
    assert alone(court).hold(0, 80)["ok"]
    assert [shape[0] for shape in evaluations] == [rows] * 80


@pytest.mark.parametrize("by_itself", [False, True], ids=["as one", "one by one"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_every_call_has_values_of_its_own(sit: Sit, op: str, form: str, by_itself: bool) -> None:
    court = sit(op, form=form)
    desk = (alone(court) if by_itself else court).job.held
    laid = desk.lay(0, 80)
    for place in laid["inputs"]:
        given = desk.given[place["name"]]
        assert len(torch.unique(given.reshape(80, -1), dim=0)) == 80
        for n in (0, 1, 41, 79):
            there = court.job.arena.tensor(place["at"] + n * laid["step"], tuple(place["shape"]), given.dtype)
            assert torch.equal(there, given[n])
    for output in laid["outputs"]:
        for n in (0, 1, 41, 79):
            there = court.job.arena.tensor(output["at"] + n * laid["step"], (output["bytes"],), torch.uint8)
            assert bool((there == 0xFF).all())


@pytest.mark.parametrize("by_itself", [False, True], ids=["as one", "one by one"])
@pytest.mark.parametrize("number", [1, 42, 80])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_one_wrong_element_in_one_call(sit: Sit, op: str, form: str, number: int, by_itself: bool) -> None:
    court = sit(op, at(number, one_element), form=form)
    told = (alone(court) if by_itself else court).hold(0, 80)
    layout = list(court.job.held.laid["outputs"])
    assert (told["outcome"], told["output"]) == ("WRONG_VALUES", layout[-1]["name"])
    assert told["note"].startswith(f"call {number} of 80")
    shape = court.job.held.laid["call"].shapes["x"]
    assert told["judgement"]["first_mismatch"]["index"][0] == shape[0] - 1, "a place in that call"


@pytest.mark.parametrize("by_itself", [False, True], ids=["as one", "one by one"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_one_output_is_overwritten_by_a_later_call(sit: Sit, op: str, form: str, by_itself: bool) -> None:
    court = sit(op, at(60, overwrite), form=form)
    told = (alone(court) if by_itself else court).hold(0, 80, silent)
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")
    assert told["note"].startswith("outputs of calls 21 and 60 of 80 hold the same bits")


@pytest.mark.parametrize("by_itself", [False, True], ids=["as one", "one by one"])
@pytest.mark.parametrize("op", OPS)
def test_an_input_is_changed_in_one_call(sit: Sit, op: str, by_itself: bool) -> None:
    court = sit(op, at(30, change_input))
    told = (alone(court) if by_itself else court).hold(0, 80)
    assert (told["outcome"], told["output"]) == ("MUTATED", "x")
    assert told["note"].startswith("call 30 of 80")


@pytest.mark.parametrize("same", [True, False])
def test_the_baseline_excuses_only_the_calls_that_it_gets_wrong(sit: Sit, same: bool) -> None:
    """Both are wrong for a part of the calls: the same part, or the other one."""

    def faulty(forward: Forward, sign: int) -> Forward:
        def called(x: Tensor) -> Tensor:
            y: Tensor = forward(x)
            y[..., -1] = torch.where(x[..., 0] * sign > 0, y[..., -1] * 2 + 1, y[..., -1])
            return y

        return called

    court = sit("silu_and_mul", lambda forward, state: faulty(forward, 1))
    standard = court.job.standard
    right = standard.baseline
    standard.baseline = lambda key: faulty(right(key), 1 if same else -1)
    assert court.hold(0, 80)["ok"] is same
