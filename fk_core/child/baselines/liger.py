"""Liger's Triton kernels for norms and gated activations.

Its softmax stays out: in 16 bits it subtracts, exponentiates and sums without widening, and it can't take a row wider
than one block, so it would pass neither the comparison nor the vocabularies of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fk_core.child.baselines.base import BaselineUnusable, Provider

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KERNELS = {
    "rms_norm": "LigerRMSNormFunction, and LigerFusedAddRMSNormFunction where there is a residual",
    "silu_and_mul": "LigerFusedGateUpSiLUMulFunction, or LigerSiLUMulFunction on contiguous halves before 0.8",
}


class Liger(Provider):
    name: ClassVar[str] = "liger"
    kernels: ClassVar[Mapping[str, str]] = KERNELS
    libraries: ClassVar[tuple[str, ...]] = ("liger_kernel",)
    distributions: ClassVar[tuple[str, ...]] = ("liger-kernel", "liger-kernel-nightly")

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
        try:
            if task == "rms_norm":
                return _rms_norm(state["weight"], init["eps"])
            return _silu_and_mul()
        except Exception as error:
            raise BaselineUnusable(f"liger-kernel is installed but lacks what {task} needs: {error!r}") from error


def _rms_norm(weight: Tensor, eps: float) -> Callable[..., Any]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def forward(x: Tensor, residual: Tensor | None = None) -> Any:
        # No offset; "llama" rounds to the dtype of x before the weight is applied, as Liger does for Llama.
        if residual is None:
            return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)
        return LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, 0.0, "llama", False)

    return forward


def _silu_and_mul() -> Callable[..., Any]:
    from liger_kernel.ops import swiglu

    fused = getattr(swiglu, "LigerFusedGateUpSiLUMulFunction", None)
    halves = swiglu.LigerSiLUMulFunction

    def forward(x: Tensor) -> Any:
        if fused is not None:
            return fused.apply(x)
        gate, up = x.chunk(2, dim=-1)
        return halves.apply(gate, up)

    return forward


PROVIDER = Liger()
