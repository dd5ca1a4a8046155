from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fk_core.catalog import Catalog
from fk_core.child.baselines import base

CATALOG = Catalog()


def test_every_file_is_a_provider_of_its_name() -> None:
    assert base.providers() == ["flashinfer", "liger", "torch_compile", "torch_eager", "vllm"]
    for name in base.providers():
        assert base.provider(name).name == name


def test_an_unknown_provider_is_answered_with_the_known() -> None:
    for name in ("vlm", "base", "__init__", "../wire"):
        with pytest.raises(base.UnknownProvider, match="torch_eager"):
            base.provider(name)


def test_asking_what_is_installed_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from fk_core.child.baselines import base\n"
        "for name in base.providers():\n"
        "    provider = base.provider(name)\n"
        "    provider.installed(), provider.what('rms_norm')\n"
        "base.policy_libraries()\n"
        "assert not {'torch', 'triton', 'vllm', 'flashinfer', 'liger_kernel'} & set(sys.modules), sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_installed() -> None:
    assert base.provider("torch_eager").installed() == torch.__version__
    for name, module in (("vllm", "vllm"), ("flashinfer", "flashinfer"), ("liger", "liger_kernel")):
        assert (base.provider(name).installed() is not None) == (find_spec(module) is not None)


def test_policy_names_production_libraries_and_spares_torch() -> None:
    assert base.policy_libraries() == {"vllm": "vllm", "flashinfer": "flashinfer", "liger_kernel": "liger"}


def test_support_is_honest() -> None:
    assert not base.provider("vllm").supports("softmax", "Softmax", "plain", "float32", "cuda")
    assert not base.provider("liger").supports("softmax", "Softmax", "plain", "float32", "cuda")
    assert not base.provider("flashinfer").supports("rms_norm", "RMSNorm", "plain", "float32", "cuda")
    assert not base.provider("flashinfer").supports("softmax", "Softmax", "plain", "bfloat16", "cuda")
    assert base.provider("flashinfer").supports("softmax", "Softmax", "plain", "float32", "cuda")
    for name in ("vllm", "flashinfer", "liger"):
        assert base.provider(name).supports("rms_norm", "RMSNorm", "residual", "bfloat16", "cuda")
        assert not base.provider(name).supports("rms_norm", "RMSNorm", "residual", "bfloat16", "cpu")
        assert not base.provider(name).supports("conv2d", "Conv2d", "plain", "bfloat16", "cuda")


def test_every_case_has_a_baseline_everywhere() -> None:
    for name in CATALOG.names():
        spec = CATALOG.get(name)
        for device in ("cuda", "cpu"):
            for case in spec.case_set(device):
                found = base.production(spec.name, case.entry, case.form, case.dtype, device, spec.baselines)
                assert found is not None
                assert found.what(spec.name)
                assert device == "cuda" or found.name == "torch_eager"


def test_the_first_installed_of_the_order_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"liger": "0.8", "torch_compile": "2", "torch_eager": "2"}
    for name in base.providers():
        monkeypatch.setattr(type(base.provider(name)), "installed", lambda self: versions.get(self.name))
    order = CATALOG.get("rms_norm").baselines

    def first(dtype: str, device: str = "cuda") -> str:
        found = base.production("rms_norm", "RMSNorm", "plain", dtype, device, order)
        assert found is not None
        return found.name

    assert first("bfloat16") == "liger"
    versions["flashinfer"] = "0.6"
    assert first("bfloat16") == "flashinfer"
    assert first("float32") == "liger"
    versions["vllm"] = "0.26"
    assert first("bfloat16") == "vllm"
    assert first("bfloat16", "cpu") == "torch_eager"


def test_eager_is_built() -> None:
    weight = torch.full((8,), 2.0)
    forward = base.provider("torch_eager").build(
        "rms_norm", "RMSNorm", {"hidden_size": 8, "eps": 0.0}, {"weight": weight}, torch.float32, "cpu"
    )
    x = torch.full((2, 8), 3.0)
    assert torch.allclose(forward(x), torch.full((2, 8), 2.0))
    y, residual = forward(x, x)
    assert torch.equal(residual, torch.full((2, 8), 6.0))
    assert torch.allclose(y, torch.full((2, 8), 2.0))


def test_weight_copies_and_other_init_arguments_recompile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo counts by code object, which closures share; with its limit down to 1, a second count would fail."""
    real = torch.compile

    def compile_without_inductor(function: object, **options: object) -> object:
        torch._dynamo.config.recompile_limit = 1
        return real(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", compile_without_inductor)
    limits = torch._dynamo.config.recompile_limit, torch._dynamo.config.accumulated_recompile_limit
    try:
        for eps in (0.0, 7.0, 16.0):
            for scale in (1.0, 2.0):
                forward = base.provider("torch_compile").build(
                    "rms_norm", "RMSNorm", {"eps": eps}, {"weight": scale * torch.ones(4)}, torch.float32, "cpu"
                )
                wanted = scale * 3.0 / (9.0 + eps) ** 0.5
                assert torch.allclose(forward(torch.full((2, 4), 3.0)), torch.full((2, 4), wanted))
    finally:
        torch._dynamo.config.recompile_limit, torch._dynamo.config.accumulated_recompile_limit = limits
        torch._dynamo.reset()


@pytest.mark.parametrize("name", ["vllm", "flashinfer", "liger"])
def test_a_missing_library_is_said(name: str) -> None:
    provider = base.provider(name)
    if provider.installed():
        pytest.skip(f"{name} is installed here")
    with pytest.raises(base.BaselineUnusable, match=name):
        provider.build(
            "rms_norm", "RMSNorm", {"hidden_size": 8, "eps": 0.0}, {"weight": torch.ones(8)}, torch.float32, "cpu"
        )


@pytest.mark.parametrize(("files", "said"), [((), "no _C"), (("_C_stable_libtorch.abi3.so",), "can't be loaded")])
def test_a_vllm_without_its_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: tuple[str, ...], said: str
) -> None:
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    for name in files:
        (folder / name).write_bytes(b"no shared object")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(base.BaselineUnusable, match=said):
        base.provider("vllm").build("silu_and_mul", "SiluAndMul", {}, {}, torch.bfloat16, "cpu")
