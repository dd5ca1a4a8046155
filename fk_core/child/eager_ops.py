"""The operators in plain torch, as models write them: what the eager and the compiled baseline run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Forward = Callable[..., Any]
Builder = Callable[[Mapping[str, Any], Mapping[str, Tensor]], Forward]


def rms_norm_eager(init: Mapping[str, Any], state: Mapping[str, Tensor]) -> Forward:
    weight, eps = state["weight"], init["eps"]
    width = [weight.shape[0]]

    def forward(x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            return F.rms_norm(x, width, weight, eps)
        residual = x + residual
        return F.rms_norm(residual, width, weight, eps), residual

    return forward


def rms_norm_fusible(init: Mapping[str, Any], state: Mapping[str, Tensor]) -> Forward:
    """In fp32 throughout, with one rounding at the end: a compiler makes one kernel of it."""
    weight, eps = state["weight"], init["eps"]

    def forward(x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        hidden = x.float() if residual is None else x.float() + residual.float()
        scale = torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + eps)
        y = (hidden * scale * weight.float()).to(x.dtype)
        return y if residual is None else (y, hidden.to(x.dtype))

    return forward


def silu_and_mul(init: Mapping[str, Any], state: Mapping[str, Tensor]) -> Forward:
    def forward(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return F.silu(x[..., :half]) * x[..., half:]

    return forward


def softmax(init: Mapping[str, Any], state: Mapping[str, Tensor]) -> Forward:
    dim = init["dim"]

    def forward(x: Tensor) -> Tensor:
        return torch.softmax(x, dim=dim)

    return forward


EAGER: dict[tuple[str, str], Builder] = {
    ("rms_norm", "RMSNorm"): rms_norm_eager,
    ("silu_and_mul", "SiluAndMul"): silu_and_mul,
    ("softmax", "Softmax"): softmax,
}
FUSIBLE: dict[tuple[str, str], Builder] = {**EAGER, ("rms_norm", "RMSNorm"): rms_norm_fusible}
