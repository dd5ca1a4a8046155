"""Every task: the oracle against the formula in plain Python, and the eager baseline against the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fk_core.catalog import Catalog
from fk_core.child import calls
from fk_core.child.calls import Call
from fk_core.child.eager_ops import EAGER, FUSIBLE
from fk_core.child.oracle import Oracle
from fk_core.records.task import CaseSpec, TaskSpec
from tests.tasks.measure import draw, draw_state, error_ratio

CATALOG = Catalog()
SPECS = {name: CATALOG.get(name) for name in CATALOG.names()}
ORACLES = {name: Oracle(spec.path, spec.sha256) for name, spec in SPECS.items()}
CPU_CASES = [pytest.param(spec, case, id=case.id) for spec in SPECS.values() for case in spec.cpu_cases]
Rows = list[list[float]]


def make_call(spec: TaskSpec, case: CaseSpec, distribution: str = "normal") -> Call:
    return calls.make_call(
        spec.model_dump(),
        entry=case.entry,
        form=case.form,
        dims=case.dims,
        init=case.init,
        dtype=case.dtype,
        distribution=distribution,
    )


def tiny_call(op: str, form: str, dims: dict[str, int], init: dict[str, Any], distribution: str = "normal") -> Call:
    spec = SPECS[op]
    entry = next(iter(spec.entries))
    return calls.make_call(
        spec.model_dump(), entry=entry, form=form, dims=dims, init=init, dtype="bfloat16", distribution=distribution
    )


def rms(rows: Rows, weight: list[float], eps: float) -> Rows:
    scale = [1 / math.sqrt(math.fsum(v * v for v in row) / len(row) + eps) for row in rows]
    return [[v * s * w for v, w in zip(row, weight, strict=True)] for row, s in zip(rows, scale, strict=True)]


def silu(rows: Rows) -> Rows:
    half = len(rows[0]) // 2
    return [[a / (1 + math.exp(-a)) * b for a, b in zip(r[:half], r[half:], strict=True)] for r in rows]


def softmax(rows: Rows) -> Rows:
    return [[math.exp(v - max(row)) / math.fsum(math.exp(u - max(row)) for u in row) for v in row] for row in rows]


def close(got: torch.Tensor, expected: Rows) -> bool:
    return torch.allclose(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-300)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20)


@pytest.mark.parametrize("distribution", ["normal", "large", "outliers", "tiny"])
def test_rms_norm(generator: torch.Generator, distribution: str) -> None:
    call = tiny_call("rms_norm", "plain", {"tokens": 3, "hidden": 5}, {"hidden_size": 5, "eps": 1e-5}, distribution)
    x, weight = draw(call, "x", generator), draw_state({"weight": (5,)}, torch.bfloat16, generator)["weight"]
    answer = ORACLES["rms_norm"].reference(call, {"weight": weight}, {"x": x})
    y, mag = answer["y"]
    assert set(answer) == {"y"}
    assert mag is not None
    assert close(y, rms(x.tolist(), weight.tolist(), 1e-5))
    assert torch.allclose(mag, y.abs() * math.sqrt(5))


def test_rms_norm_with_residual(generator: torch.Generator) -> None:
    call = tiny_call("rms_norm", "residual", {"tokens": 3, "hidden": 5}, {"hidden_size": 5, "eps": 1e-6}, "heavy")
    x, residual = draw(call, "x", generator), draw(call, "residual", generator)
    weight = draw_state({"weight": (5,)}, torch.bfloat16, generator)["weight"]
    answer = ORACLES["rms_norm"].reference(call, {"weight": weight}, {"x": x, "residual": residual})
    total = (x.double() + residual.double()).tolist()
    assert close(answer["residual_out"][0], total)
    assert close(answer["y"][0], rms(total, weight.tolist(), 1e-6))
    y, mag = answer["y"]
    stored = torch.tensor(rms((x + residual).tolist(), weight.tolist(), 1e-6), dtype=torch.float64)
    assert mag is not None
    # Limit times u times the extra magnitude is the distance to the norm of the stored sum: not less, not more.
    extra = 5 * 2.0**-24 * (mag - y.abs() * math.sqrt(5))
    assert torch.allclose(extra, (y - stored).abs(), rtol=1e-6, atol=1e-15)
    assert float(extra.max()) > 0


def test_silu_and_mul(generator: torch.Generator) -> None:
    call = tiny_call("silu_and_mul", "plain", {"tokens": 3, "inter": 4}, {}, "large")
    x = draw(call, "x", generator)
    y, mag = ORACLES["silu_and_mul"].reference(call, {}, {"x": x})["y"]
    assert close(y, silu(x.tolist()))
    assert mag is not None
    assert torch.equal(mag, (x[:, :4].double() * x[:, 4:].double()).abs())


def test_softmax(generator: torch.Generator) -> None:
    for dim in (-1, 1):
        call = tiny_call("softmax", "plain", {"rows": 3, "cols": 7}, {"dim": dim}, "large")
        x = draw(call, "x", generator)
        y, mag = ORACLES["softmax"].reference(call, {}, {"x": x})["y"]
        assert close(y, softmax(x.tolist()))
        assert mag is not None
        assert bool((mag[y > 0] >= y[y > 0]).all())
    call = tiny_call("softmax", "plain", {"rows": 3, "cols": 7}, {"dim": 0})
    x = draw(call, "x", generator)
    assert close(ORACLES["softmax"].reference(call, {}, {"x": x})["y"][0].T, softmax(x.T.tolist()))


def test_a_sum_over_a_vocabulary_may_take_any_order(generator: torch.Generator) -> None:
    """Torch's kernel for CPUs adds 128256 terms in few long chains; without the term for that it would not pass."""
    spec = SPECS["softmax"]
    call = calls.make_call(
        spec.model_dump(),
        entry="Softmax",
        form="plain",
        dims={"rows": 2, "cols": 128256},
        init={},
        dtype="float32",
        distribution="tiny",
    )
    x = draw(call, "x", generator)
    y, mag = ORACLES["softmax"].reference(call, {}, {"x": x})["y"]
    assert mag is not None
    got = torch.softmax(x, dim=-1)
    assert error_ratio(got, y, mag, spec.tolerance.u) <= 3
    assert error_ratio(got, y, mag - y * (128256 / 256), spec.tolerance.u) > spec.tolerance.limit
    # Still far from what exp in 16 bits does.
    coarse = torch.exp(x).bfloat16().float()
    assert error_ratio(coarse / coarse.sum(-1, keepdim=True), y, mag, spec.tolerance.u) > spec.tolerance.limit


def test_a_nan_stays_where_the_contract_says(generator: torch.Generator) -> None:
    x = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    x[1, 2] = math.nan
    norm = tiny_call("rms_norm", "residual", {"tokens": 3, "hidden": 8}, {"hidden_size": 8, "eps": 1e-6})
    answer = ORACLES["rms_norm"].reference(norm, {"weight": torch.ones(8)}, {"x": x, "residual": torch.ones(3, 8)})
    assert answer["y"][0].isnan().tolist() == [[n == 1] * 8 for n in range(3)]
    assert answer["residual_out"][0].isnan().nonzero().tolist() == [[1, 2]]
    rows = tiny_call("softmax", "plain", {"rows": 3, "cols": 8}, {})
    y = ORACLES["softmax"].reference(rows, {}, {"x": x})["y"][0]
    assert y.isnan().tolist() == [[n == 1] * 8 for n in range(3)]
    gated = tiny_call("silu_and_mul", "plain", {"tokens": 3, "inter": 4}, {})
    assert ORACLES["silu_and_mul"].reference(gated, {}, {"x": x})["y"][0].isnan().nonzero().tolist() == [[1, 2]]


def test_vast_logits_are_equal_or_far_apart(generator: torch.Generator) -> None:
    """Honest kernels differ by a rounding of the logits: where two nearly tie, that alone would be judged."""
    for dtype in ("float32", "bfloat16", "float16"):
        call = calls.make_call(
            SPECS["softmax"].model_dump(), entry="Softmax", form="plain", dims={"rows": 64, "cols": 64}, init={},
            dtype=dtype, distribution="vast",
        )  # fmt: skip
        drawn = torch.randn(64, 64, generator=generator) * 300
        x = ORACLES["softmax"].make_inputs(call, lambda name: drawn.to(call.dtype))["x"]  # noqa: B023
        assert x.dtype == call.dtype
        gaps = x.double().sort(-1).values.diff()
        assert bool(((gaps == 0) | (gaps >= 128)).all())
        ref, mag = ORACLES["softmax"].reference(call, {}, {"x": x})["y"]
        assert mag is not None
        scaled = x.float() * 1.4426950408889634
        got = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
        assert error_ratio((got / got.sum(-1, keepdim=True)).to(call.dtype), ref, mag, 2.0**-24) <= 5


def test_no_row_of_softmax_is_masked_entirely(generator: torch.Generator) -> None:
    call = tiny_call("softmax", "plain", {"rows": 3, "cols": 7}, {}, "masked")
    drawn: list[torch.Tensor] = []

    def keep(name: str) -> torch.Tensor:
        drawn.append(draw(call, name, generator))
        return drawn[-1]

    x = ORACLES["softmax"].make_inputs(call, keep)["x"]
    assert bool(torch.isneginf(drawn[0][0]).all()), "the draw holds no row that is masked entirely: nothing is tested"
    assert x[0].tolist() == [0.0] + [-math.inf] * 6
    assert torch.equal(x[1:], drawn[0][1:])
    y, mag = ORACLES["softmax"].reference(call, {}, {"x": x})["y"]
    assert bool(torch.isfinite(y).all())
    assert mag is not None
    assert bool((mag[y == 0] == 0).all())


@pytest.mark.parametrize("build", [EAGER, FUSIBLE], ids=["eager", "fusible"])
@pytest.mark.parametrize(("spec", "case"), CPU_CASES)
def test_the_baseline_passes_its_own_task(
    spec: TaskSpec, case: CaseSpec, build: dict[tuple[str, str], Callable[..., Any]], generator: torch.Generator
) -> None:
    task = spec.model_dump()
    for distribution in spec.distributions:
        call = make_call(spec, case, distribution)
        state = draw_state(calls.state_shapes(task, call), call.dtype, generator)
        inputs = ORACLES[spec.name].make_inputs(call, lambda name, call=call: draw(call, name, generator))
        references = ORACLES[spec.name].reference(call, state, inputs)
        forward = build[spec.name, case.entry](call.init, state)
        outputs = forward(*(value.clone() for value in inputs.values()))
        named = dict(
            zip(calls.output_layout(task, call), outputs if isinstance(outputs, tuple) else (outputs,), strict=True)
        )
        assert set(named) == set(references)
        for name, (ref, mag) in references.items():
            shape, dtype = calls.output_layout(task, call)[name]
            assert (tuple(named[name].shape), named[name].dtype) == (shape, dtype)
            assert mag is not None
            assert bool(((torch.isfinite(mag) & (mag >= 0)) | ref.isnan()).all())
            ratio = error_ratio(named[name], ref, mag, spec.tolerance.u)
            assert ratio <= spec.tolerance.limit, f"{distribution} {name}: {ratio}"


@pytest.mark.parametrize(("spec", "case"), CPU_CASES)
def test_wrong_outputs_do_not_pass(spec: TaskSpec, case: CaseSpec, generator: torch.Generator) -> None:
    """What a task must reject on normal values, by the element rule alone."""
    task = spec.model_dump()
    call = make_call(spec, case)
    state = draw_state(calls.state_shapes(task, call), call.dtype, generator)
    inputs = ORACLES[spec.name].make_inputs(call, lambda name: draw(call, name, generator))
    for name, (ref, mag) in ORACLES[spec.name].reference(call, state, inputs).items():
        assert mag is not None
        right = ref.to(call.dtype)
        u, limit = spec.tolerance.u, spec.tolerance.limit
        assert error_ratio(right, ref, mag, u) <= 1
        unwritten, swapped = right.clone(), right.roll(1, dims=-1)
        unwritten[-1] = float("nan")
        one = right.clone()
        one.view(-1)[ref.abs().argmax()] *= 1.3
        wrong = {
            "zeros": torch.zeros_like(right),
            "constant": torch.full_like(right, float(ref.mean())),
            "unwritten row": unwritten,
            "one element by 30%": one,
            "columns moved by one": swapped,
        }
        if inputs["x"].shape == right.shape:
            wrong["copy of the input"] = inputs["x"]
        for what, output in wrong.items():
            assert error_ratio(output, ref, mag, u) > limit, f"{name}: {what} would pass"


@pytest.mark.parametrize(("spec", "case"), CPU_CASES)
def test_rows_are_independent_where_the_task_says_so(
    spec: TaskSpec, case: CaseSpec, generator: torch.Generator
) -> None:
    """Else the judge must not look at several calls as one."""
    count = 3
    for distribution in spec.distributions:
        call = make_call(spec, case, distribution)
        whole = calls.stacked(spec.model_dump(), call, count)
        assert whole is not None, "every form of the present tasks says so"
        assert calls.output_layout(spec.model_dump(), whole) == {
            name: ((count * shape[0], *shape[1:]), dtype)
            for name, (shape, dtype) in calls.output_layout(spec.model_dump(), call).items()
        }
        shapes = calls.state_shapes(spec.model_dump(), call)
        assert calls.state_shapes(spec.model_dump(), whole) == shapes
        state = draw_state(shapes, call.dtype, generator)
        given = ORACLES[spec.name].make_inputs(whole, lambda name: draw(whole, name, generator))  # noqa: B023
        together = ORACLES[spec.name].reference(whole, state, given)
        rows = next(iter(call.shapes.values()))[0]
        for n in range(count):
            part = slice(n * rows, (n + 1) * rows)
            alone = ORACLES[spec.name].reference(call, state, {name: given[name][part] for name in given})
            for name in alone:
                for one, several in zip(alone[name], together[name], strict=True):
                    torch.testing.assert_close(several[part], one, rtol=1e-12, atol=1e-300, equal_nan=True)
