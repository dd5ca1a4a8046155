"""What inductor makes of the operator, with static shapes: a compiled model runs something like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from fk_core.child.baselines.base import Provider

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KERNELS = {
    "rms_norm": "the fp32 formula of RMSNorm through torch.compile(dynamic=False)",
    "silu_and_mul": "silu(a) * b through torch.compile(dynamic=False)",
    "softmax": "torch.softmax through torch.compile(dynamic=False)",
}


class TorchCompile(Provider):
    name: ClassVar[str] = "torch_compile"
    kernels: ClassVar[Mapping[str, str]] = KERNELS
    tunes: ClassVar[bool] = True
    distributions: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

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
        key = (task, entry, repr(sorted(init.items())), tuple(state))
        if key not in self._compiled:
            self._compiled[key] = _compile(task, entry, dict(init), tuple(state))
        compiled, tensors = self._compiled[key], tuple(state.values())

        def forward(*inputs: Tensor) -> Any:
            return compiled(tensors, *inputs)

        return forward


def _compile(task: str, entry: str, init: dict[str, Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """One compiled function for all weights of this operator: they are arguments, so that copies compile nothing."""
    import torch

    from fk_core.child.eager_ops import FUSIBLE

    def call(tensors: tuple[Tensor, ...], *inputs: Tensor) -> Any:
        return FUSIBLE[task, entry](init, dict(zip(names, tensors, strict=True)))(*inputs)

    # Dynamo keeps and counts compilations by code object, which closures share: each operator gets its own.
    own = FunctionType(call.__code__.replace(), call.__globals__, call.__name__, call.__defaults__, call.__closure__)
    # With static shapes each new row count recompiles. Past dynamo's limit it would run eagerly and still be called
    # compiled; fullgraph makes that an error, and the limit here is beyond what a judge meets.
    torch._dynamo.config.recompile_limit = 1024
    torch._dynamo.config.accumulated_recompile_limit = 16384
    compiled: Callable[..., Any] = torch.compile(own, dynamic=False, fullgraph=True)
    return compiled


PROVIDER = TorchCompile()
