"""The CUDA operators that vLLM's eager mode runs; its compiled mode runs inductor's own norms instead."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fk_core.child.baselines.base import BaselineUnusable, Provider

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Kernel = Callable[..., None]

KERNELS = {
    "rms_norm": "torch.ops._C.rms_norm of vLLM, and fused_add_rms_norm in place where there is a residual",
    "silu_and_mul": "torch.ops._C.silu_and_mul of vLLM",
}
OPERATORS = {"rms_norm": ("rms_norm", "fused_add_rms_norm"), "silu_and_mul": ("silu_and_mul",)}
"""Names under ``torch.ops._C``."""


class Vllm(Provider):
    name: ClassVar[str] = "vllm"
    kernels: ClassVar[Mapping[str, str]] = KERNELS
    libraries: ClassVar[tuple[str, ...]] = ("vllm",)
    distributions: ClassVar[tuple[str, ...]] = ("vllm",)

    def supports(self, task: str, entry: str, form: str, dtype: str, device: str) -> bool:
        return device == "cuda" and task in KERNELS and dtype in ("bfloat16", "float16", "float32")

    def build(
        self,
        task: str,
        entry: str,
        init: Mapping[str, Any],
        state: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Callable[..., Any]:
        import torch

        for name in OPERATORS[task]:
            _load(name)
        if task == "rms_norm":
            return _rms_norm(torch.ops._C.rms_norm, torch.ops._C.fused_add_rms_norm, state["weight"], init["eps"])
        return _silu_and_mul(torch.ops._C.silu_and_mul)


def _load(operator: str) -> None:
    """Load the files that register vLLM's operators, unless that has been done.

    Importing vLLM instead takes seconds, sets up inductor in its own way, which would change torch.compile in the
    same process, and loads no kernels where it takes the platform for another one.
    """
    import torch

    if hasattr(torch.ops._C, operator):
        return
    found = importlib.util.find_spec("vllm")
    folders = list(found.submodule_search_locations or []) if found else []
    files = sorted(path for folder in folders for path in Path(folder).glob("_C*.so"))
    said = [f"no _C*.so in {', '.join(folders) or 'no folder'}"] if not files else []
    for path in files:
        try:
            torch.ops.load_library(path)
            said.append(path.name)
        except OSError as error:
            said.append(f"{path.name} can't be loaded: {error}")
    if not hasattr(torch.ops._C, operator):
        raise BaselineUnusable(f"vllm is installed, but it has no torch.ops._C.{operator} ({'; '.join(said)})")


def _rms_norm(plain: Kernel, fused: Kernel, weight: Tensor, eps: float) -> Callable[..., Any]:
    import torch

    def forward(x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            out = torch.empty_like(x)
            plain(out, x, weight, eps)
            return out
        fused(x, residual, weight, eps)
        return x, residual

    return forward


def _silu_and_mul(kernel: Kernel) -> Callable[..., Any]:
    import torch

    def forward(x: Tensor) -> Tensor:
        out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
        kernel(out, x)
        return out

    return forward


PROVIDER = Vllm()
