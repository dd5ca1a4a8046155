from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fk_core.catalog import Catalog, passed_init
from fk_core.child import calls
from fk_core.child.oracle import Oracle, OracleError

TASK = """
import torch

def oracle(call, state, inputs):
    {oracle}

def make_inputs(call, draw):
    {inputs}
"""


def make_oracle(tmp_path: Path, oracle: str, inputs: str = "return {'x': draw('x')}") -> Oracle:
    path = tmp_path / "softmax.py"
    path.write_text(TASK.format(oracle=oracle, inputs=inputs), encoding="utf-8")
    return Oracle(str(path))


@pytest.fixture
def call() -> calls.Call:
    task = Catalog().get("softmax").model_dump()
    return calls.make_call(task, entry="Softmax", form="plain", dims={"rows": 2, "cols": 3}, init={}, dtype="bfloat16")


def test_a_call_of_every_case() -> None:
    catalog = Catalog()
    for name in catalog.names():
        spec = catalog.get(name)
        task = spec.model_dump()
        for case in [*spec.cases, *spec.cpu_cases]:
            call = calls.make_call(
                task, entry=case.entry, form=case.form, dims=case.dims, init=case.init, dtype=case.dtype
            )
            assert case.id.split("/")[-1].split("+")[0] == "x".join(map(str, call.shapes[call.arguments[0]]))
            assert call.init == case.init
            for shape, dtype in calls.output_layout(task, call).values():
                assert dtype == getattr(torch, case.dtype)
                assert min(shape) > 0
            parameters = task["entries"][case.entry]["init"]
            assert calls.passed_init(parameters, call.init) == passed_init(spec, case)


def test_layout_of_a_residual_call() -> None:
    task = Catalog().get("rms_norm").model_dump()
    call = calls.make_call(
        task,
        entry="RMSNorm",
        form="residual",
        dims={"tokens": 3, "hidden": 96},
        init={"hidden_size": 96},
        dtype="bfloat16",
        distribution="outliers",
    )
    assert call.arguments == ("x", "residual")
    assert call.init == {"hidden_size": 96, "eps": 1e-6}
    assert call.shapes == {"x": (3, 96), "residual": (3, 96)}
    assert calls.state_shapes(task, call) == {"weight": (96,)}
    assert calls.output_layout(task, call) == {
        "y": ((3, 96), torch.bfloat16),
        "residual_out": ((3, 96), torch.bfloat16),
    }
    assert list(calls.output_layout(task, call)) == ["y", "residual_out"]


def test_several_calls_as_one() -> None:
    task = Catalog().get("rms_norm").model_dump()
    dims, init = {"tokens": 3, "hidden": 96}, {"hidden_size": 96}
    call = calls.make_call(task, entry="RMSNorm", form="residual", dims=dims, init=init, dtype="bfloat16")
    wanted = calls.make_call(
        task, entry="RMSNorm", form="residual", dims=dims | {"tokens": 21}, init=init, dtype="bfloat16"
    )
    assert calls.stacked(task, call, 7) == wanted
    form = task["entries"]["RMSNorm"]["forms"]["residual"]
    form["leading"], form["rows"] = "", "tokens"
    assert calls.stacked(task, call, 7) == wanted
    form["rows"] = ""
    assert calls.stacked(task, call, 7) is None


@pytest.mark.parametrize(("dim", "leading", "able"), [(-1, (), True), (1, (), False), (-1, (2, 3), False)])
def test_a_leading_dimension_says_that_rows_are_independent(dim: int, leading: tuple[int, ...], able: bool) -> None:
    task = Catalog().get("softmax").model_dump()
    task["entries"]["Softmax"]["forms"]["plain"]["rows"] = ""
    dims = {"rows": 6, "cols": 4}
    call = calls.make_call(
        task, entry="Softmax", form="plain", dims=dims, init={"dim": dim}, dtype="float32", leading=leading
    )
    found = calls.stacked(task, call, 5)
    assert (found is not None) is able
    assert found is None or found.shapes == {"x": (30, 4)}


def test_the_oracle_gets_fp64_copies(tmp_path: Path, call: calls.Call) -> None:
    oracle = make_oracle(tmp_path, "inputs['x'].mul_(2); return {'y': (inputs['x'], inputs['x'].abs())}")
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    ids = torch.arange(3)
    ref, mag = oracle.reference(call, {}, {"x": x, "ids": ids})["y"]
    assert ref.dtype == torch.float64
    assert mag is not None
    assert bool((ref == 2).all())
    assert bool((x == 1).all())
    wide = torch.ones(2, 3, dtype=torch.float64)
    oracle.reference(call, {}, {"x": wide})
    assert bool((wide == 1).all())


def test_integers_stay_integers(tmp_path: Path, call: calls.Call) -> None:
    oracle = make_oracle(tmp_path, "inputs['x'].add_(1); return {'y': (inputs['x'], None)}")
    x = torch.arange(6).view(2, 3)
    ref, mag = oracle.reference(call, {}, {"x": x})["y"]
    assert (ref.dtype, mag) == (torch.int64, None)
    assert x[0, 0] == 0


@pytest.mark.parametrize(
    "answer",
    ["return {'y': (inputs['x'].float(), None)}", "return {'y': (inputs['x'], inputs['x'][0])}"],
)
def test_an_answer_that_is_no_reference(tmp_path: Path, call: calls.Call, answer: str) -> None:
    with pytest.raises(OracleError):
        make_oracle(tmp_path, answer).reference(call, {}, {"x": torch.ones(2, 3)})


@pytest.mark.parametrize(
    "inputs", ["return {}", "return {'x': draw('x')[0]}", "return {'x': draw('x'), 'z': draw('x')}"]
)
def test_inputs_that_are_not_those_of_the_call(tmp_path: Path, call: calls.Call, inputs: str) -> None:
    oracle = make_oracle(tmp_path, "return {}", inputs)
    with pytest.raises(OracleError):
        oracle.make_inputs(call, lambda name: torch.zeros(2, 3))


def test_the_file_is_the_announced_one(tmp_path: Path) -> None:
    spec = Catalog().get("softmax")
    assert Oracle(spec.path, spec.sha256).sha256 == spec.sha256
    changed = tmp_path / "softmax.py"
    changed.write_bytes(Path(spec.path).read_bytes() + b"\n")
    with pytest.raises(OracleError, match="not the announced"):
        Oracle(str(changed), spec.sha256)


def test_a_file_without_functions(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("oracle = 3\n", encoding="utf-8")
    with pytest.raises(OracleError, match="oracle"):
        Oracle(str(path))
