# operator: RMSNorm
# kind: honest_stdlib
# expect: accept
# needs_gpu: 0
# danger: none
# notes: namedtuple, dataclass, enum and typing, which look at frames on behalf of their caller.
import collections
import dataclasses
import enum
import typing

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

Shape = collections.namedtuple("Shape", "rows cols")


class Mode(enum.Enum):
    PLAIN = 1
    FUSED = 2


class Plan(typing.NamedTuple):
    mode: Mode
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Settings:
    eps: float
    vector: int = 8


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.settings = Settings(eps)

    def forward(self, x, residual=None):
        plan = Plan(Mode.PLAIN if residual is None else Mode.FUSED, Shape(x.numel() // x.shape[-1], x.shape[-1]))
        assert plan.shape.cols == self.hidden_size
        return _rms(x, self.weight, self.settings.eps, residual)
