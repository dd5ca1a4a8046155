"""Plain torch, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fk_core.child.baselines.base import Provider

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KERNELS = {
    "rms_norm": "torch.nn.functional.rms_norm, after an addition where there is a residual",
    "silu_and_mul": "torch.nn.functional.silu and a multiplication",
    "softmax": "torch.softmax",
}


class TorchEager(Provider):
    name: ClassVar[str] = "torch_eager"
    kernels: ClassVar[Mapping[str, str]] = KERNELS
    distributions: ClassVar[tuple[str, ...]] = ("torch",)

    def supports(self, task: str, entry: str, form: str, dtype: str, device: str) -> bool:
        return task in KERNELS

    def build(
        self,
        task: str,
        entry: str,
        init: Mapping[str, Any],
        state: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Callable[..., Any]:
        from fk_core.child.eager_ops import EAGER

        return EAGER[task, entry](init, state)


PROVIDER = TorchEager()
