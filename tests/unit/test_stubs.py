from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
import torch

from fk_core.catalog import Catalog, passed_init
from fk_core.domain import BadDomain, declared, runtime_dims
from fk_core.errors import RequestError
from fk_core.harness import Harness
from fk_core.records.task import TaskSpec
from fk_core.settings import Settings
from fk_core.stubs import MAX_CHARS, _named, render, render_source

NAMES = Catalog().names()


@pytest.fixture(params=NAMES)
def spec(request: pytest.FixtureRequest) -> TaskSpec:
    return Catalog().get(request.param)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_fits_an_answer_and_shows_every_case(spec: TaskSpec, device: str) -> None:
    stub = render(spec, device)
    assert len(stub.model_dump_json()) <= MAX_CHARS < 8000
    assert [case.id for case in stub.cases] == [case.id for case in spec.case_set(device)]
    assert stub.cases_total == len(stub.cases)
    json.loads(stub.model_dump_json())


def test_compiles_constructs_and_binds(spec: TaskSpec) -> None:
    namespace: dict[str, object] = {}
    exec(compile(render_source(spec), "stub.py", "exec"), namespace)
    for case in [*spec.cases, *spec.cpu_cases]:
        built = namespace[case.entry]
        assert isinstance(built, type)
        module = built(**passed_init(spec, case))
        for name, value in case.init.items():
            assert getattr(module, name) == value
        arguments = spec.entries[case.entry].forms[case.form].arguments
        inspect.signature(module.forward).bind(*arguments)
        state = {
            name: torch.zeros([case.dims[side] for side in tensor.shape])
            for name, tensor in spec.entries[case.entry].state.items()
        }
        module.load_state_dict(state, strict=True)
        with pytest.raises(NotImplementedError):
            module(*arguments)


def test_a_call_says_shapes_and_dtype() -> None:
    stub = render(Catalog().get("rms_norm"), "cuda")
    call = next(case.call for case in stub.cases if case.id.endswith("512x4096+res"))
    assert call == "RMSNorm(hidden_size=4096, eps=1e-05)(x, residual)  # x, residual: bf16[512, 4096]"
    flux = next(case.call for case in stub.cases if "FLUX" in case.id)
    assert flux.startswith("RMSNorm(hidden_size=128)(x)")
    assert any("keep the defaults" in note for note in stub.notes)


def test_times_where_they_are_known() -> None:
    spec = Catalog().get("softmax")
    stub = render(spec, "cuda", measured={spec.cases[1].id: (1.5, None), spec.cases[2].id: (2.0, 3.25)})
    assert [(case.floor_us, case.baseline_us) for case in stub.cases[:3]] == [(None, None), (1.5, None), (2.0, 3.25)]
    assert not any("No times" in note for note in stub.notes)
    assert any("No times" in note for note in render(spec, "cuda").notes)


def test_baselines_say_what_is_installed() -> None:
    spec = Catalog().get("rms_norm")
    on_gpu = render(spec, "cuda").baselines
    assert [line.split(" ")[0] for line in on_gpu] == spec.baselines
    assert next(line for line in on_gpu if line.startswith("torch_eager")).startswith(
        f"torch_eager ({torch.__version__},"
    )
    assert [line.split(" ")[0] for line in render(spec, "cpu").baselines] == ["torch_eager"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_listing_and_stub_count_the_cases_of_the_device_at_hand(device: str, tmp_path: Path) -> None:
    """``cuda`` is asked for on a machine that may have none: the listing answers all the same."""
    with Harness(Settings(home=tmp_path, lock_dir=tmp_path / "locks", device=device)) as harness:
        listed = harness.list_ops()
    assert any(_named(device) in note and "A case is" in note for note in listed.notes)
    for op in listed.ops:
        stub = render(Catalog().get(op.name), device)
        assert op.cases == op.cases_by_device[device] == stub.cases_total
        assert f"These {op.cases} are judged on {_named(device)}; " in stub.notes[0]
        other = "cuda" if device == "cpu" else "cpu"
        assert f"on {_named(other)} {op.cases_by_device[other]} others are" in stub.notes[0]
        assert "A case is" in stub.notes[0]


def test_dtype_keeps_its_cases() -> None:
    spec = Catalog().get("softmax")
    for word in ("fp16", "float16"):
        stub = render(spec, "cuda", dtype=word)
        assert stub.cases_total == 2
        assert all("bge-m3" in case.id for case in stub.cases)
        assert (
            f"These 2 are those of {word} among the 11 that are judged on a GPU; on a CPU 1 of 4 are." in stub.notes[0]
        )
    with pytest.raises(RequestError, match="bfloat16, float16, float32"):
        render(spec, "cuda", dtype="fp8")


def test_it_says_which_rows_a_declared_domain_has_to_cover(spec: TaskSpec) -> None:
    """As the check of a declaration has it, also on a CPU, whose cases are smaller."""
    (rows,) = runtime_dims(spec)
    widths = {name: [size] for name, size in spec.cases[0].dims.items() if name != rows}
    (said,) = (line for line in render(spec, "cpu").contract if "SUPPORTS" in line)
    for others in ({}, widths):
        tried = re.compile(r"has to cover what models ask for, (\d+ to \d+)$")
        with pytest.raises(BadDomain, match=tried) as caught:
            declared(f"SUPPORTS = {others | {rows: (2, 2)}}", spec)
        span = tried.search(str(caught.value))
        assert span is not None
        assert span[1] in said
        low, high = map(int, span[1].split(" to "))
        declared(f"SUPPORTS = {others | {rows: (low, high)}}", spec)


def test_many_cases_are_cut_and_counted() -> None:
    spec = Catalog().get("softmax")
    many = [
        case.model_copy(update={"id": f"{case.id}-{i}", "dims": {**case.dims, "rows": i + 1}})
        for i in range(6)
        for case in spec.cases
    ]
    stub = render(spec.model_copy(update={"cases": many}), "cuda")
    assert stub.cases_total == 66
    assert 0 < len(stub.cases) < 66
    assert len(stub.model_dump_json()) <= MAX_CHARS
    assert any(f"{66 - len(stub.cases)} further cases" in note for note in stub.notes)


def test_leading_dimensions_are_said() -> None:
    assert "tokens may be one to three dimensions\n" in render_source(Catalog().get("silu_and_mul"))
    assert "rows may be one to three dimensions where dim=-1\n" in render_source(Catalog().get("softmax"))
    assert render_source(Catalog().get("rms_norm")).count("may be one to three dimensions") == 2


def test_stub_and_contract_agree_on_leading_dimensions(spec: TaskSpec) -> None:
    stub = render(spec, "cpu")
    assert "any number of" not in stub.source
    assert any("one to three leading dimensions" in line for line in stub.contract)
