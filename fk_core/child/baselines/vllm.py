"""The CUDA operators that vLLM's eager mode runs; its compiled mode runs inductor's own norms instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fk_core.child.baselines.base import BaselineUnusable, Provider

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KERNELS = {
    "rms_norm": "vllm._custom_ops.rms_norm, and fused_add_rms_norm in place where there is a residual",
    "silu_and_mul": "torch.ops._C.silu_and_mul of vLLM",
}


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

        try:
            # Importing it registers the operators under torch.ops._C.
            from vllm import _custom_ops
        except Exception as error:
            raise BaselineUnusable(f"vllm is installed but can't be imported: {error!r}") from error
        if task == "rms_norm":
            return _rms_norm(_custom_ops, state["weight"], init["eps"])
        if not hasattr(torch.ops._C, "silu_and_mul"):
            raise BaselineUnusable("this vllm registers no torch.ops._C.silu_and_mul")
        return _silu_and_mul(torch.ops._C.silu_and_mul)


def _rms_norm(ops: Any, weight: Tensor, eps: float) -> Callable[..., Any]:
    import torch

    for name in ("rms_norm", "fused_add_rms_norm"):
        if not hasattr(torch.ops._C, name):
            raise BaselineUnusable(f"this vllm registers no torch.ops._C.{name}")

    def forward(x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            out = torch.empty_like(x)
            ops.rms_norm(out, x, weight, eps)
            return out
        ops.fused_add_rms_norm(x, residual, weight, eps)
        return x, residual

    return forward


def _silu_and_mul(kernel: Callable[..., None]) -> Callable[..., Any]:
    import torch

    def forward(x: Tensor) -> Tensor:
        out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
        kernel(out, x)
        return out

    return forward


PROVIDER = Vllm()
