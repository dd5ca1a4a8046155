# operator: RMSNorm
# kind: honest_custom_op
# expect: accept
# needs_gpu: 0
# danger: none
# notes: An operator in a namespace of its own through torch.library, as engines register theirs.

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))


@torch.library.custom_op("fast_norms::rms", mutates_args=())
def _op(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms(x, w, eps)


@_op.register_fake
def _(x, w, eps):
    return torch.empty_like(x)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        if residual is None:
            return torch.ops.fast_norms.rms(x, self.weight, self.eps)
        h = x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y, h.to(x.dtype)
