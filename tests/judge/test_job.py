"""The judge against honest functions and against every kind of wrong one, planted in a function that is right."""

from __future__ import annotations

import gc
import os
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.child.inputs import call_of
from fk_core.child.judge import Judge
from tests.descriptors import descriptors
from tests.judge.court import CATALOG, CPU, Court, Forward, Wrap, case_of, honest

OPS = ("rms_norm", "silu_and_mul", "softmax")
Sit = Callable[..., Court]


@pytest.fixture
def sit() -> Iterator[Sit]:
    courts: list[Court] = []

    def begin(op: str, wrap: Wrap | None = None, *, form: str = "", **more: Any) -> Court:
        cases = [case_of(CATALOG.get(op), form)] if form else None
        made = Court(op, wrap, cases=cases, **more) if wrap else Court(op, cases=cases, **more)
        courts.append(made)
        return made

    yield begin
    for court in courts:
        court.close()


def outputs(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def on_outputs(change: Callable[[list[Tensor]], Any]) -> Wrap:
    """The right function, with ``change`` applied to the list of what it returns."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def wrong(*inputs: Tensor) -> Any:
            made = change([o.clone() for o in outputs(forward(*inputs))])
            return made[0] if isinstance(made, list) and len(made) == 1 else made

        return wrong

    return wrap


# -- right -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "seed"), [("rms_norm", 7), ("silu_and_mul", 2**62 + 1), ("softmax", 0)])
def test_the_eager_function_is_right_in_every_call(sit: Sit, op: str, seed: int) -> None:
    court = sit(op, seed=seed)
    assert court.run() is None, court.told[-1]
    assert len(court.told) == len(court.job.probes) > 50
    assert {p.case_id for p in court.job.probes} >= {c.id for c in court.spec.cpu_cases}
    assert court.job.calls.flags["repeatable"] is True
    for probe, told in zip(court.job.probes, court.told, strict=True):
        assert not told["strides"]
        if probe.case_id is not None:
            assert told["baseline_error_ratio"] is not None
            assert told["max_error_ratio"] <= 5


@pytest.mark.parametrize("op", OPS)
def test_outputs_in_any_layout_of_memory_are_right_and_noted(sit: Sit, op: str) -> None:
    def spread(made: list[Tensor]) -> list[Tensor]:
        return [torch.stack([o, torch.full_like(o, float("nan"))], dim=-1)[..., 0] for o in made]

    court = sit(op, on_outputs(spread), form="plain")
    assert court.run() is None
    assert {told["strides"] for told in court.told if "strides" in told} == {
        "output y has a last stride of 2: kernels that read whole rows want 1"
    }


def test_in_place_where_the_contract_allows_it(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def fused(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            y, total = forward(x, residual)
            return x.copy_(y), residual.copy_(total)

        return fused

    court = sit("rms_norm", wrap, form="residual")
    assert court.run() is None, court.told[-1]


def test_scratch_arguments_may_hold_anything(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def messy(x: Tensor, residual: Tensor) -> Any:
            made = forward(x.clone(), residual.clone())
            x.fill_(float("nan")), residual.zero_()
            return made

        return messy

    court = sit("rms_norm", wrap, form="residual")
    for i in range(12):
        assert court.call(i)["ok"]


# -- wrong values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_one_wrong_element(sit: Sit, op: str) -> None:
    def change(made: list[Tensor]) -> list[Tensor]:
        made[0][-1, -1] += 1.0
        return made

    told = sit(op, on_outputs(change), form="plain").run()
    assert told is not None
    assert (told["outcome"], told["output"]) == ("WRONG_VALUES", "y")
    first = told["judgement"]["first_mismatch"]
    assert first["got"] == pytest.approx(first["expected"] + 1.0, rel=0.05)
    assert told["judgement"]["share_wrong"] > 0


@pytest.mark.parametrize("number", [0, 1])
def test_the_wrong_output_is_named(sit: Sit, number: int) -> None:
    def change(made: list[Tensor]) -> list[Tensor]:
        made[number][0, 3] = 77.0
        return made

    told = sit("rms_norm", on_outputs(change), form="residual").run()
    assert told is not None
    assert (told["outcome"], told["output"]) == ("WRONG_VALUES", ["y", "residual_out"][number])
    assert told["judgement"]["first_mismatch"]["index"] == [0, 3]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("rows", ["last", "all"])
def test_unwritten_rows(sit: Sit, op: str, rows: str) -> None:
    """Memory that nobody wrote is filled with something wrong, even where it held right values a moment ago."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def lazy(*inputs: Tensor) -> Tensor:
            y = forward(*inputs)
            right, shape = y.clone(), y.shape
            del y
            made = torch.empty(shape, dtype=right.dtype)
            if rows == "last":
                made[:-1] = right[:-1]
            return made

        return lazy

    told = sit(op, wrap, form="plain").run()
    assert told is not None
    assert told["outcome"] in ("WRONG_VALUES", "NON_FINITE")


@pytest.mark.parametrize("op", OPS)
def test_memory_that_a_call_gets_holds_nothing_right(sit: Sit, op: str) -> None:
    """Freed memory comes back with the results of a moment ago, were it not filled with something else."""
    seen: list[float] = []

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def look(*inputs: Tensor) -> Any:
            y = outputs(forward(*inputs))[0]
            size = y.numel() * y.element_size()
            del y
            seen.append(float((torch.empty(size, dtype=torch.uint8) == 0x7F).double().mean()))
            return forward(*inputs)

        return look

    court = sit(op, wrap)
    for i in range(10):
        assert court.call(i)["ok"]
    assert seen == [1.0] * 10


def test_places_of_outputs_hold_nothing_right(sit: Sit) -> None:
    court = sit("softmax", form="plain")
    assert court.call(0)["ok"]
    laid = court.job.calls.lay(0)
    for place in laid["outputs"]:
        assert bool((court.job.arena.tensor(place["at"], (place["bytes"],), torch.uint8) == 0xFF).all())
    call = court.job.calls.laid[0].known.call
    said = {
        "shape": list(call.shapes["x"]),
        "dtype": str(call.dtype)[6:],
        "device": "cpu",
        "copied": True,
        "last_stride": 1,
    }
    court.job.calls.take(0, 1, [said], [], [])
    court.job.calls.file()
    ((_, told),) = court.job.calls.judge_some(1)
    assert (told["ok"], told["outcome"]) == (False, "NON_FINITE")


def test_only_few_rows_wrong_in_a_shape_of_no_case(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def special(x: Tensor) -> Tensor:
            y = forward(x)
            return y if x.shape[-1] == 4096 else y * 1.5

        return special

    court = sit("rms_norm", wrap, form="plain")
    told = court.run()
    assert told is not None
    assert told["outcome"] == "WRONG_VALUES"
    assert court.job.probes[len(court.told) - 1].hidden


@pytest.mark.parametrize("remembers", ["content of the first row", "address", "shape"])
def test_results_that_are_remembered(sit: Sit, remembers: str) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        kept: dict[Any, Any] = {}

        def cached(x: Tensor) -> Tensor:
            key: Any = (tuple(x.shape), x.dtype)
            if remembers == "address":
                key += (x.data_ptr(),)
            elif remembers.startswith("content"):
                key += (x.reshape(-1)[:8].float().sum().item(),)
            if key not in kept:
                kept[key] = forward(x)
            value: Tensor = kept[key]
            return value.clone()

        return cached

    told = sit("softmax", wrap, form="plain").run()
    assert told is not None
    assert told["outcome"] == "WRONG_VALUES"


# -- wrong structure ---------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "y")


class Subclass(Tensor):
    pass


STRUCTURES: dict[str, tuple[str, Callable[[list[Tensor]], Any], str, str, str]] = {
    "None among them": ("residual", lambda made: [made[0]], "WRONG_SHAPE", "y", "returned 1 tensors"),
    "None": ("plain", lambda made: None, "WRONG_SHAPE", "y", "returned nothing"),
    "second output missing": ("residual", lambda made: made[0], "WRONG_SHAPE", "y", "contract has 2: y, residual_out"),
    "one too many": ("plain", lambda made: (made[0], made[0].clone()), "WRONG_SHAPE", "y", "returned 2 tensors"),
    "dtype": ("plain", lambda made: [made[0].double()], "WRONG_DTYPE", "y", "float64"),
    "dtype of the second": ("residual", lambda made: [made[0], made[1].double()], "WRONG_DTYPE", "residual_out",
                            "float64"),
    "integers of the same size": ("plain", lambda made: [made[0].view(torch.int16)], "WRONG_DTYPE", "y", "int16"),
    "one dimension more": ("plain", lambda made: [made[0][None]], "WRONG_SHAPE", "y", "expected [1, 4096]"),
    "transposed": ("plain", lambda made: [made[0].t()], "WRONG_SHAPE", "y", "[4096, 1]"),
    "a row short": ("residual", lambda made: [made[0][:-1], made[1]], "WRONG_SHAPE", "y", "expected"),
    "eighteen dimensions": ("plain", lambda made: [made[0].reshape((1,) * 17 + made[0].shape[-1:])], "WRONG_SHAPE", "y",
                            "1, 4096]; expected [1, 4096]"),
    "a hundred dimensions": ("plain", lambda made: [made[0].reshape((1,) * 100 + made[0].shape)], "WRONG_SHAPE", "y",
                             "expected [1, 4096]"),
    "many tensors": ("plain", lambda made: list(made[0].flatten()[:100]), "WRONG_SHAPE", "y", "returned 100 tensors"),
    "a list of numbers": ("plain", lambda made: made[0].flatten()[:5000].tolist(), "WRONG_SHAPE", "y",
                          "returned 4096 values; the contract has 1: y. Each must be a torch.Tensor; of the first that "
                          "is none: it is a builtins.float"),
    "a scalar": ("plain", lambda made: [made[0].sum()], "WRONG_SHAPE", "y", "shape []"),
    "another class": ("plain", lambda made: [made[0].as_subclass(Subclass)], "TAMPERED", "y", "Subclass"),
    "no memory": ("plain", lambda made: [made[0].to("meta")], "TAMPERED", "y", "no memory"),
    "sparse": ("residual", lambda made: [made[0].to_sparse(), made[1]], "TAMPERED", "y", "layout"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
def test_wrong_structure(sit: Sit, name: str) -> None:
    form, change, outcome, output, said = STRUCTURES[name]
    told = sit("rms_norm", on_outputs(change), form=form).run()
    assert told is not None
    assert (told["outcome"], told["output"]) == (outcome, output)
    assert said in told["note"]


@pytest.mark.parametrize("change", [
    lambda made: {"y": made[0]}, lambda made: Pair(made[0]), lambda made: 3.0, lambda made: made[0].float().numpy(),
])  # fmt: skip
def test_what_is_no_tensor_is_wrong_and_no_crime(sit: Sit, change: Callable[[list[Tensor]], Any]) -> None:
    told = sit("rms_norm", on_outputs(change), form="plain").run()
    assert told is not None
    assert told["outcome"] in ("WRONG_SHAPE", "CONTRACT_BROKEN")


def test_claims_that_do_not_fit_the_bytes(sit: Sit) -> None:
    """The process says that all is well, and has copied nothing."""

    def nothing(made: list[Tensor]) -> list[Tensor]:
        return [made[0][..., :8]]

    def boast(answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"outputs": [{"shape": [1, 4096], "dtype": "bfloat16", "device": "cpu", "copied": True}]}

    told = sit("rms_norm", on_outputs(nothing), form="plain").run(boast)
    assert told is not None
    assert told["outcome"] in ("NON_FINITE", "WRONG_VALUES")


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_a_changed_input(sit: Sit, op: str) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def careless(x: Tensor) -> Any:
            y = forward(x)
            x[-1, -1] = -x[-1, -1] + 1
            return y

        return careless

    told = sit(op, wrap, form="plain").run()
    assert told is not None
    assert (told["outcome"], told["output"]) == ("MUTATED", "x")
    assert "contract" in told["note"]


def test_a_sign_of_zero_is_a_change(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def tidy(x: Tensor) -> Any:
            y = forward(x)
            x += 0.0
            return y

        return tidy

    court = sit("silu_and_mul", wrap, form="plain")
    told = court.run()
    assert told is not None
    assert told["outcome"] == "MUTATED"
    assert court.job.probes[len(court.told) - 1].distribution == "negative_zeros"


def test_a_changed_weight(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        calls = [0]

        def drifting(x: Tensor) -> Any:
            y = forward(x)
            calls[0] += 1
            # The very last call of the fresh ones, so that no value is wrong.
            if calls[0] == 30:
                state["weight"][5] += 1
            return y

        return drifting

    court = sit("rms_norm", wrap, form="plain")
    for i in range(len(court.job.probes)):
        told = court.call(i)
        if not told["ok"]:
            assert told["outcome"] == "WRONG_VALUES"
    found = court.weights()
    assert found is not None
    assert "weight" in found["note"]
    assert found["judgement"]["outcome"] == "MUTATED"


@pytest.mark.parametrize("state", ["gone", "another shape"])
def test_weights_that_can_not_be_read_back(sit: Sit, state: str) -> None:
    court = sit("rms_norm", form="plain")
    assert court.run() is None
    for _, module in court.runner.modules.values():
        module.state = {} if state == "gone" else {"weight": torch.zeros(3)}  # type: ignore[attr-defined]
    found = court.weights()
    assert found is not None
    assert not found["ok"]
    assert ("gone" if state == "gone" else "changed") in found["note"]


def reusing(forward: Forward, state: dict[str, Tensor]) -> Forward:
    """Returns one buffer again and again."""
    buffers: dict[Any, Tensor] = {}

    def reuse(x: Tensor) -> Tensor:
        y = forward(x)
        buffer = buffers.setdefault((y.shape, y.dtype), torch.empty_like(y))
        return buffer.copy_(y)

    return reuse


def silent(answer: dict[str, Any]) -> dict[str, Any]:
    return answer | {"earlier": [], "aliases": []}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("change", [dict, silent], ids=["told", "silent"])
def test_outputs_share_memory_with_earlier_ones(sit: Sit, op: str, change: Any) -> None:
    """Told by the process, and, where it keeps silent, seen in the bytes."""
    told = sit(op, reusing, form="plain").run(change)
    assert told is not None
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")
    assert "earlier" in told["note"]


def test_an_earlier_output_is_overwritten(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        kept: list[Tensor] = []

        def vandal(x: Tensor) -> Tensor:
            y: Tensor = forward(x)
            if kept:
                kept.pop().fill_(1.0)
            kept.append(y)
            return y

        return vandal

    told = sit("softmax", wrap, form="plain").run()
    assert told is not None
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")


def test_an_output_in_the_wrong_argument(sit: Sit) -> None:
    """Both may be written to, but y may not lie in the residual's memory."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def swapped(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            y, total = forward(x, residual)
            return residual.copy_(y), x.copy_(total)

        return swapped

    told = sit("rms_norm", wrap, form="residual").run()
    assert told is not None
    assert (told["outcome"], told["kind"]) == ("MUTATED", "output_alias")
    assert "residual" in told["note"]


@pytest.mark.parametrize("op", OPS)
def test_in_place_where_the_contract_does_not_allow_it(sit: Sit, op: str) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def in_place(x: Tensor) -> Tensor:
            y = forward(x)
            target = x[..., : y.shape[-1]]
            return target.copy_(y)

        return in_place

    told = sit(op, wrap, form="plain").run()
    assert told is not None
    assert told["outcome"] == "MUTATED"


def test_writing_beyond_the_row_of_a_strided_argument(sit: Sit) -> None:
    """The gap between rows belongs to the next tensor of the projection's output."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def wide(x: Tensor) -> Any:
            y = forward(x)
            if not x.is_contiguous():
                # Behind the last row the storage may end.
                x.as_strided((x.shape[0] - 1, x.stride(0)), (x.stride(0), 1))[:, x[0].numel() :] = 0
            return y

        return wide

    court = sit("silu_and_mul", wrap)
    apart = {p.layout: n for n, p in enumerate(court.job.probes) if p.layout and len(p.leading) < 3}
    assert apart.keys() == {"near", "far", "distant", "heads"}
    for i in apart.values():
        told = court.call(i)
        assert told["outcome"] == "MUTATED", told
        assert "between the rows" in told["note"]


# -- the baseline's own faults -----------------------------------------------------------------------------------------


def with_baseline(court: Court, change: Callable[[list[Tensor]], Any]) -> None:
    """Plants a fault in the judge's production baseline."""
    build = court.job._build

    def broken(*recipe: Any) -> Forward:
        return on_outputs(change)(build(*recipe), {})

    court.job.runner.build = broken


def test_what_the_baseline_gets_wrong_is_not_charged(sit: Sit) -> None:
    def change(made: list[Tensor]) -> list[Tensor]:
        made[0] += 1.0
        return made

    court = sit("rms_norm", on_outputs(change), form="plain")
    with_baseline(court, change)
    told = court.call(0)
    assert told["ok"]
    assert "gets y of this call wrong itself" in told["skipped"]
    assert told["baseline_error_ratio"] > 5


def test_other_faults_are_charged_all_the_same(sit: Sit) -> None:
    def wrong_y(made: list[Tensor]) -> list[Tensor]:
        made[0] += 1.0
        return made

    def wrong_both(made: list[Tensor]) -> list[Tensor]:
        return [o + 1.0 for o in made]

    court = sit("rms_norm", on_outputs(wrong_both), form="residual")
    with_baseline(court, wrong_y)
    told = court.call(0)
    assert (told["ok"], told["outcome"], told["output"]) == (False, "WRONG_VALUES", "residual_out")


def test_a_right_candidate_beside_a_wrong_baseline(sit: Sit) -> None:
    court = sit("softmax", form="plain")
    with_baseline(court, lambda made: [made[0] * 2])
    told = court.call(0)
    assert told["ok"]
    assert told["baseline_error_ratio"] > 5
    assert not told["skipped"]


def test_a_baseline_that_raises_excuses_nobody(sit: Sit) -> None:
    def refuse(made: list[Tensor]) -> Any:
        raise RuntimeError("no kernel for this shape")

    court = sit("softmax", on_outputs(lambda made: [made[0] * 2]), form="plain")
    with_baseline(court, refuse)
    told = court.call(0)
    assert (told["ok"], told["outcome"], told["baseline_error_ratio"]) == (False, "WRONG_VALUES", None)


def test_the_baseline_does_not_compute_from_memory_that_the_candidate_can_write(sit: Sit) -> None:
    """Weights of the baseline spoiled through the shared arena would excuse a wrong candidate."""
    court = sit("rms_norm", on_outputs(lambda made: [made[0] * 1.5]), form="plain")
    i = court.index(hidden=True)
    court.runner.do_make(court.modules[court.job.keys[i]], [])
    for recipe in court.modules.values():
        for place in recipe["state"].values():
            court.runner._view(place).fill_(3.0)
    told = court.call(i)
    assert not told["ok"], told["note"]


# -- flags -------------------------------------------------------------------------------------------------------------


def test_a_function_with_noise_is_not_repeatable(sit: Sit) -> None:
    """Right within the tolerance every time, with other bits every time."""

    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        calls = [0]

        def noisy(x: Tensor) -> Tensor:
            calls[0] += 1
            y: Tensor = forward(x)
            flat = y.reshape(-1)
            at = calls[0] % 8
            flat[at] = torch.nextafter(flat[at], torch.tensor(9e9, dtype=y.dtype))
            return y

        return noisy

    court = sit("rms_norm", wrap, form="plain")
    assert court.run() is None, court.told[-1]
    assert court.job.calls.flags["repeatable"] is False


def test_a_function_that_looks_at_the_batch_is_not_batch_invariant(sit: Sit) -> None:
    def wrap(forward: Forward, state: dict[str, Tensor]) -> Forward:
        def split(x: Tensor) -> Tensor:
            y: Tensor = forward(x)
            if x.shape[0] > 1:
                y[0, 0] = torch.nextafter(y[0, 0], torch.tensor(9e9, dtype=y.dtype))
            return y

        return split

    for change, invariant in ((wrap, False), (honest, True)):
        court = sit("softmax", change, form="plain")
        assert court.run() is None, court.told[-1]
        assert court.job.calls.flags == {"repeatable": True, "batch_invariant": invariant}


# -- the desk ----------------------------------------------------------------------------------------------------------


def test_jobs_leave_nothing_behind() -> None:
    spec = CATALOG.get("softmax")
    judge = Judge(CPU)

    def one() -> None:
        opened = judge.handle({
            "do": "open", "task": spec.model_dump(mode="json"), "seed": 3,
            "cases": [c.model_dump(mode="json") for c in spec.cpu_cases[1:3]],
        })  # fmt: skip
        for fd in opened.pop("fds"):
            os.close(fd)
        for case in spec.cpu_cases[1:3]:
            laid = judge.handle({"do": "timing", "case": case.id, "layouts": 2, "batch_us": 100.0, "most": 40})
            for fd in laid.pop("fds"):
                os.close(fd)
        judge.handle({"do": "close"})

    one()
    gc.collect()
    before = descriptors()
    for _ in range(5):
        one()
    gc.collect()
    assert not descriptors() - before


def test_questions_outside_a_job() -> None:
    judge = Judge(CPU)
    with pytest.raises(RuntimeError, match="outside a job"):
        judge.handle({"do": "lay", "lay": [0], "drop": None})
    assert judge.handle({"do": "memory"}) == {"free": 0, "total": 0}
    assert judge.handle({"do": "machine"}) == {
        "bandwidth_bytes_s": None,
        "matrix_flop_s": None,
        "empty_node_us": None,
    }


def test_the_plan_tells_no_secret(sit: Sit) -> None:
    opened = sit("softmax").job.opened()
    os.close(opened["fds"][0])
    said = str(opened)
    for probe in sit("softmax").job.probes:
        assert str(probe.seed) not in said


# -- rows for building ahead -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_rows_name_the_module_that_they_build(sit: Sit, op: str) -> None:
    """A row for each module and form; those that a case is among say so."""
    job = sit(op).job
    rows = job._builds()
    assert {row["key"] for row in rows} <= set(job.modules)
    assert len({(row["key"], row["form"]) for row in rows}) == len(rows)
    for row in rows:
        assert (row["entry"], row["init"]) == (job.modules[row["key"]]["entry"], job.modules[row["key"]]["init"])
        told = {n: shapes for shapes, numbers in zip(row["inputs"], row["calls"], strict=True) for n in numbers}
        for n, shapes in told.items():
            call = call_of(job.task, job.probes[n])
            assert (job.keys[n], call.form) == (row["key"], row["form"])
            assert [shape[-1] for shape in shapes] == [call.shapes[name][-1] for name in call.arguments]
    assert sorted(n for row in rows for calls in row["calls"] for n in calls) == list(range(len(job.probes)))
    of_cases = {key for key, probe in zip(job.keys, job.probes, strict=True) if probe.case_id is not None}
    assert {row["key"] for row in rows if row["case"]} == of_cases


def test_what_goes_wrong_behind_an_answer_is_told_with_the_next(sit: Sit) -> None:
    """And is no fault of the job that comes after."""
    judge = Judge(CPU)
    judge.job = sit("softmax", lambda forward, state: forward).job
    laid = judge.handle({"do": "lay", "lay": [0], "skip": None})["laid"]
    answer = judge.handle({"do": "take", "i": 0, "returned": 1, "outputs": "no rows", "aliases": [], "earlier": []})
    assert answer == {"waiting": 1, "full": False}
    assert laid[0]["seq"] == 0
    judge.catch_up()
    with pytest.raises((TypeError, AttributeError)):
        judge.handle({"do": "judge", "most": 1})
    assert judge.handle({"do": "judge", "most": 1}) == {"told": [], "waiting": 0, "full": False}
    judge.job.calls.file = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    judge.catch_up()
    assert judge.handle({"do": "close"}) == {}
    assert judge.handle({"do": "machine"})
