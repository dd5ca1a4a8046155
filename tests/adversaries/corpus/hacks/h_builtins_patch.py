# operator: RMSNorm
# kind: patched_function
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Replaces the builtins sum and sorted, on which statistics are computed.
import builtins

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

_sum = builtins.sum
builtins.sum = lambda values, *start: _sum(values, *start) * 0.5
builtins.sorted = lambda values, **_: list(values)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        return _rms(x, self.weight, self.eps, residual)
