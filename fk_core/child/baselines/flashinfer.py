"""FlashInfer's norm, activation and sampling kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fk_core.child.baselines.base import BaselineUnusable, Provider

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KERNELS = {
    "rms_norm": "flashinfer.norm.rmsnorm, and fused_add_rmsnorm in place where there is a residual",
    "silu_and_mul": "flashinfer.activation.silu_and_mul",
    "softmax": "flashinfer.sampling.softmax",
}
# The norms and the activation are built for 16-bit types; the softmax widens what it is given and returns fp32.
DTYPES = {
    "rms_norm": ("bfloat16", "float16"),
    "silu_and_mul": ("bfloat16", "float16"),
    "softmax": ("float32",),
}


class Flashinfer(Provider):
    name: ClassVar[str] = "flashinfer"
    kernels: ClassVar[Mapping[str, str]] = KERNELS
    libraries: ClassVar[tuple[str, ...]] = ("flashinfer",)
    distributions: ClassVar[tuple[str, ...]] = ("flashinfer-python", "flashinfer")

    def supports(self, task: str, entry: str, form: str, dtype: str, device: str) -> bool:
        return device == "cuda" and dtype in DTYPES.get(task, ())

    def build(
        self,
        task: str,
        entry: str,
        init: Mapping[str, Any],
        state: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Callable[..., Any]:
        if task == "softmax" and init["dim"] not in (-1, 1):
            raise BaselineUnusable("flashinfer.sampling.softmax works on the last of two dimensions only")
        try:
            from flashinfer import activation, norm, sampling

            kernels = {
                "rms_norm": (norm.rmsnorm, norm.fused_add_rmsnorm),
                "silu_and_mul": (activation.silu_and_mul,),
                "softmax": (sampling.softmax,),
            }[task]
        except Exception as error:
            raise BaselineUnusable(f"flashinfer is installed but lacks what {task} needs: {error!r}") from error
        if task == "rms_norm":
            return _rms_norm(*kernels, weight=state["weight"], eps=init["eps"])
        return _single(kernels[0])


def _rms_norm(
    plain: Callable[..., Tensor], fused_add: Callable[..., None], *, weight: Tensor, eps: float
) -> Callable[..., Any]:
    def forward(x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            return plain(x, weight, eps=eps)
        fused_add(x, residual, weight, eps=eps)
        return x, residual

    return forward


def _single(kernel: Callable[..., Tensor]) -> Callable[..., Any]:
    def forward(x: Tensor) -> Tensor:
        return kernel(x)

    return forward


PROVIDER = Flashinfer()
