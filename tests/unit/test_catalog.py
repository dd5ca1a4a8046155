from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fk_core
from fk_core import catalog as catalog_module
from fk_core import task_rules
from fk_core.catalog import Catalog, default_roots, elements, passed_init
from fk_core.errors import TaskBroken, UnknownCase, UnknownTask
from fk_core.task_text import parse_signature

TASKS = Path(fk_core.__file__).parent.parent / "tasks"
NAMES = ["rms_norm", "silu_and_mul", "softmax"]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog([TASKS])


@pytest.fixture
def broken_task(tmp_path: Path) -> Callable[[str, str, str], Catalog]:
    """A catalog whose rms_norm has one piece of its text replaced."""

    def make(name: str, old: str, new: str) -> Catalog:
        folder = tmp_path / "tasks" / "L1"
        folder.mkdir(parents=True, exist_ok=True)
        text = (TASKS / "L1" / f"{name}.py").read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in the task: the test plants nothing"
        (folder / f"{name}.py").write_text(text.replace(old, new, 1), encoding="utf-8")
        return Catalog([tmp_path / "tasks"])

    return make


def test_tasks_of_the_checkout(catalog: Catalog) -> None:
    assert catalog.names() == NAMES
    assert default_roots() == [TASKS]


def test_ids_are_unique_over_all_tasks_and_devices(catalog: Catalog) -> None:
    for device in ("cuda", "cpu"):
        ids = [case.id for name in NAMES for case in catalog.get(name).case_set(device)]
        assert len(ids) == len(set(ids))
        assert all(not set(case_id) & set(" ,*?[]") for case_id in ids)


def test_number_of_cases(catalog: Catalog) -> None:
    for name in NAMES:
        spec = catalog.get(name)
        assert 8 <= len(spec.cases) <= 12
        assert 3 <= len(spec.cpu_cases) <= 5
        assert any(case.dtype == "float32" for case in spec.cpu_cases)
        assert "float32" in spec.dtypes


def test_the_five_llama_cases(catalog: Catalog) -> None:
    spec = catalog.get("rms_norm")
    ids = [case.id for case in catalog.select(spec, "cuda", "rms_norm/Llama-3.1-8B/*")]
    assert [case_id.rsplit("/", 1)[1] for case_id in ids] == [
        "1x4096", "64x4096", "512x4096+res", "4096x4096+res", "16384x4096"
    ]  # fmt: skip
    assert ids[2] == "rms_norm/Llama-3.1-8B/tp1/mixed-512/bf16/512x4096+res"


def test_init_is_complete_and_only_what_differs_is_passed(catalog: Catalog) -> None:
    spec = catalog.get("rms_norm")
    llama, flux = catalog.select(spec, "cpu", "*Llama*decode-1*")[0], catalog.select(spec, "cpu", "*FLUX*")[0]
    assert llama.init == {"hidden_size": 4096, "eps": 1e-5}
    assert passed_init(spec, llama) == {"hidden_size": 4096, "eps": 1e-5}
    assert flux.init == {"hidden_size": 128, "eps": 1e-6}
    assert passed_init(spec, flux) == {"hidden_size": 128}


def test_quick_is_small_and_spread(catalog: Catalog) -> None:
    for name in NAMES:
        spec = catalog.get(name)
        quick = catalog.select(spec, "cuda", "quick")
        assert len(quick) == 5
        assert {case.form for case in quick} == {case.form for case in spec.cases}
        assert {case.dtype for case in quick} == {case.dtype for case in spec.cases}
        assert len({case.model for case in quick}) == min(5, len({case.model for case in spec.cases}))
        sizes = [elements(spec, case) for case in spec.cases]
        assert min(sizes) in [elements(spec, case) for case in quick]
        assert max(sizes) in [elements(spec, case) for case in quick]
        assert quick == catalog.select(spec, "cuda", "quick")
        # Help, tool and README say so.
        assert catalog.select(spec, "cpu", "quick") == catalog.select(spec, "cpu", "default")


def test_globs(catalog: Catalog) -> None:
    spec = catalog.get("softmax")
    both = catalog.select(spec, "cuda", "*/bge-m3/*, *fp32/1x128256")
    assert [case.model for case in both] == ["Llama-3.1-8B", "bge-m3", "bge-m3"]
    shown = both[0].id.removeprefix("softmax/")
    assert catalog.select(spec, "cuda", shown) == both[:1], "an id as the tables show it"
    assert catalog.select(spec, "cuda", "") == catalog.select(spec, "cuda", "default") == spec.cases
    assert catalog.select(spec, "cpu") == spec.cpu_cases


@pytest.mark.parametrize("pattern", ["nothing*", ",", "*bge-m3*,*claude*", "x" * 2000])
def test_a_pattern_that_matches_nothing_names_ids(catalog: Catalog, pattern: str) -> None:
    spec = catalog.get("softmax")
    with pytest.raises(UnknownCase) as caught:
        catalog.select(spec, "cpu", pattern)
    assert spec.cpu_cases[0].id in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("rmsnorm", "rms_norm"), ("RMS-Norm", "rms_norm"), ("silu", "silu_and_mul"), ("sotfmax", "softmax")],
)
def test_nearest_names(catalog: Catalog, asked: str, nearest: str) -> None:
    with pytest.raises(UnknownTask, match=f"no operator '{asked}'; nearest: {nearest}"):
        catalog.get(asked)


@pytest.mark.parametrize("asked", ["zzz", "", "../../etc/passwd", "L1/rms_norm", "a" * 10000, "\udc80"])
def test_unknown_names(catalog: Catalog, asked: str) -> None:
    with pytest.raises(UnknownTask) as caught:
        catalog.get(asked)
    assert len(str(caught.value)) < 300


BROKEN = [
    ("rms_norm", '"level": 1,', '"level": 2,', "level"),
    ("rms_norm", '"name": "rms_norm"', '"name": "rmsnorm"', "name"),
    ("rms_norm", '"level": 1,', '"levle": 1,', "lacks level"),
    ("rms_norm", '"level": 1,', '"level": 1, "extra": 2,', "unknown keys extra"),
    ("rms_norm", '"level": 1,', '"level": int("1"),', "is no literal"),
    ("rms_norm", "TASK = {", "TASK = TASK2 = {", "one assignment"),
    ("rms_norm", "hidden_size: int, eps", "hidden_size, eps", "entries.RMSNorm.init"),
    ("rms_norm", "hidden_size: int, eps: float = 1e-06", "*sizes: int", "only plain parameters"),
    ("rms_norm", "x: Tensor, residual", "x: Tensor): pass\\ndef f(residual", "entries.RMSNorm.forward"),
    ("rms_norm", "Tensor | None = None", "Tensor | None", "leaves out residual"),
    ("rms_norm", "4 * tokens * hidden", "4 * tokens * width", "entries.RMSNorm.forms.plain.flops"),
    ("rms_norm", "(2 * tokens * hidden + hidden) * itemsize", "open('x')", "forms.plain.bytes"),
    ("rms_norm", '"hidden": 4096}', '"hidden": 0}', r"cases\[0\]"),
    ("rms_norm", '"hidden": 4096}', '"hiden": 4096}', r"cases\[0\]"),
    ("rms_norm", '"hidden": 4096}', '"hidden": 4096, "more": 1}', r"cases\[0\].dims"),
    ("rms_norm", '"hidden": 4096}', '"hidden": 4096.0}', r"cases\[0\]"),
    ("rms_norm", '"init": {"hidden_size": "hidden",', '"init": {"hidden_size": 4097,', r"cases\[0\].init.hidden_size"),
    ("rms_norm", '"init": {"hidden_size": "hidden",', '"init": {"hidden_size": "width",', "no dimension"),
    ("rms_norm", '"init": {"hidden_size": "hidden",', '"init": {"size": "hidden",', "size: no such argument"),
    ("rms_norm", '"init": {"hidden_size": "hidden", "eps": 1e-05}', '"init": {}', "lacks hidden_size"),
    ("rms_norm", '"form": "plain"', '"form": "fused"', "no form 'fused'"),
    ("rms_norm", '"dtype": "bfloat16"', '"dtype": "bf16"', r"cases\[0\].dtype"),
    ("rms_norm", '"dtype": "bfloat16"', '"dtype": "float16"', r"cases\[0\].dtype"),
    ("rms_norm", '"workload": "decode-64"', '"workload": "decode 64"', "part of an id"),
    ("rms_norm", '"calls": 1}', '"calls": 0}', "at least 1"),
    ("rms_norm", '"workload": "prompt-512"', '"wrokload": "prompt-512"', "lacks workload"),
    ("rms_norm", '"cancellation",', "", "lacks the mandatory cancellation"),
    ("rms_norm", '"huge"', '"enormous"', "unknown: enormous"),
    ("rms_norm", '["vllm",', '["vlm",', "baselines"),
    ("rms_norm", ', "torch_eager"]', "]", "lacks torch_eager"),
    ("rms_norm", '"u": 2.0**-24', '"u": 0.5', "would accept anything"),
    ("rms_norm", '"tokens": (1, 4099, 1)', '"tokens": (9, 3, 1)', "hidden.tokens"),
    ("rms_norm", '"tokens": (1, 4099, 1)', '"rows": (1, 4099, 1)', "hidden.rows"),
    ("rms_norm", '"draw": "norm_weight"', '"draw": "ones"', "state.weight"),
    ("rms_norm", '"shape": ["hidden"], "draw"', '"shape": ["tokens"], "draw"', "state.weight"),
    ("rms_norm", '"leading": "tokens"', '"leading": "hidden"', "must be the first side of x"),
    ("softmax", '"rows": "rows"', '"rows": "cols"', "rows: 'cols' must be the first side of x"),
    ("softmax", '"leading_init": {"dim": -1}', '"leading_init": {"axis": -1}', "axis: no such argument"),
    ("rms_norm", '"mutates": {"x": "may",', '"mutates": {"z": "may",', "forms.residual"),
    ("rms_norm", '"mutates": {"x": "may", "residual": "may"},', "", "aliases"),
    ("rms_norm", '"arguments": ["x", "residual"]', '"arguments": ["residual", "x"]', "first parameters of forward"),
    ("rms_norm", '"init_of": {"RMSNorm": {"hidden_size": "hidden"}}', '"init_of": {}', "init_of"),
    ("rms_norm", "def oracle(", "def orakel(", "oracle"),
    ("rms_norm", "def make_inputs(", "def inputs(", "make_inputs"),
    ("rms_norm", "import torch\n", "import torch\nimport os\n", "imports 'os'"),
    ("rms_norm", "import torch\n", "import torch\ntorch.manual_seed(0)\n", "line 4: holds the statement Expr"),
    ("rms_norm", "import torch\n", "import torch\nfrom . import x\n", "torch only"),
    ("rms_norm", "def oracle(", "def oracle((", "no Python"),
    ("rms_norm", '"tokens": 48, "hidden": 128', '"tokens": 480, "hidden": 128', r"cpu_cases\[3\]"),
    ("softmax", '"workload": "decode-64-sampling"', '"workload": "decode-1-sampling"', None),
    ("silu_and_mul", '"2 * inter"', '"2 * inter + tokens / 2"', "whole number"),
]


def test_what_decides_an_argument_of_init_is_no_number_of_rows() -> None:
    spec = Catalog().get("softmax").model_copy(update={"init_of": {"Softmax": {"dim": "rows"}}})
    found = {key for key, what in task_rules._problems(spec) if "no number of rows" in what}
    assert found == {"entries.Softmax.forms.plain.leading", "entries.Softmax.forms.plain.rows"}


def test_a_side_of_a_weight_is_no_number_of_rows() -> None:
    spec = Catalog().get("rms_norm").model_copy(deep=True)
    spec.entries["RMSNorm"].state["weight"].shape[:] = ["tokens"]
    found = {key for key, what in task_rules._problems(spec) if "a side of the state weight" in what}
    assert found == {"entries.RMSNorm.forms.plain.leading", "entries.RMSNorm.forms.residual.leading"}


@pytest.mark.parametrize(("name", "old", "new", "message"), BROKEN)
def test_a_malformed_task_says_where(
    broken_task: Callable[[str, str, str], Catalog], name: str, old: str, new: str, message: str | None
) -> None:
    catalog = broken_task(name, old, new)
    if message is None:
        assert len(catalog.get(name).cases) == 11  # the shape still tells the two apart
        return
    with pytest.raises(TaskBroken, match=message) as caught:
        catalog.get(name)
    assert f"{name}.py" in str(caught.value)


def test_two_cases_of_one_id(broken_task: Callable[[str, str, str], Catalog]) -> None:
    catalog = broken_task("silu_and_mul", '"tp": 4, "workload": "decode-64"', '"tp": 4, "workload": "decode-64"')
    path = catalog.roots[0] / "L1" / "silu_and_mul.py"
    text = path.read_text(encoding="utf-8")
    first = text[text.index('        {"model"') : text.index("},\n", text.index('        {"model"') + 100) + 3]
    path.write_text(text.replace(first, first + first, 1), encoding="utf-8")
    with pytest.raises(TaskBroken, match=r"same id as cases\[0\]"):
        catalog.get("silu_and_mul")


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for level in ("L1", "L2"):
        (tmp_path / level).mkdir()
        shutil.copy(TASKS / "L1" / "softmax.py", tmp_path / level)
    with pytest.raises(TaskBroken, match="two task files"):
        Catalog([tmp_path]).names()


def test_a_changed_file_is_read_again(broken_task: Callable[[str, str, str], Catalog]) -> None:
    catalog = broken_task("softmax", '"level": 1,', '"level":  1,')
    first = catalog.get("softmax")
    assert catalog.get("softmax") is first
    path = Path(first.path)
    path.write_text(path.read_text(encoding="utf-8").replace("Softmax where", "The softmax where"), encoding="utf-8")
    os.utime(path, ns=(1, 1))
    second = catalog.get("softmax")
    assert second.source.startswith("The softmax")
    assert second.sha256 != first.sha256


def test_the_wheel_carries_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "fk_core"
    shutil.copytree(TASKS, package / "data" / "tasks")
    # A foreign folder of the same name beside the package is not ours.
    (package.parent / "tasks" / "L1").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(catalog_module.fk_core, "__file__", str(package / "__init__.py"))
    assert Catalog().names() == NAMES
    assert Catalog().get("rms_norm").path.startswith(str(package))


def test_no_task_is_imported_and_torch_stays_out() -> None:
    code = (
        "import sys\n"
        "from fk_core.catalog import Catalog\n"
        "from fk_core.stubs import render\n"
        "from fk_core.source_check import check_source\n"
        "catalog = Catalog()\n"
        "for name in catalog.names():\n"
        "    stub = render(catalog.get(name), 'cuda')\n"
        "    assert not check_source(catalog.get(name), stub.source)\n"
        "assert not {'torch', 'triton', 'numpy', 'vllm', 'liger_kernel'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TASKS.parent, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_signatures() -> None:
    first, second = parse_signature("x: Tensor, residual: Tensor | None = None")
    assert (first.name, first.annotation, first.has_default) == ("x", "Tensor", False)
    assert (second.name, second.annotation, second.has_default, second.default) == (
        "residual", "Tensor | None", True, None
    )  # fmt: skip
    assert parse_signature("") == []
    for bad in ("x", "x: int = f()", "x: int, *, y: int", "**x: int", "x: int) -> int: ..., (", "x: int = "):
        with pytest.raises(ValueError):
            parse_signature(bad)


def test_a_pattern_that_would_be_matched_for_seconds(catalog: Catalog) -> None:
    spec = catalog.get("rms_norm")
    assert catalog.select(spec, "cpu", "*" * 2000) == catalog.select(spec, "cpu")
    started = time.monotonic()
    with pytest.raises(UnknownCase, match=r"cases has 10000 characters; at most 2000 are taken. Name many ids at once"):
        catalog.select(spec, "cpu", "[" * 10_000)
    assert time.monotonic() - started < 1.0
