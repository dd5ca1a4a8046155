# operator: RMSNorm
# kind: nonfinite
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Turns every non-finite result into zero, where the operator has one.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        h = h.clamp(-3e18, 3e18).nan_to_num(0.0, 0.0, 0.0)
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        y = torch.where(h.abs() > 1e12, torch.zeros_like(y), y)
        return y if residual is None else (y, h.to(x.dtype))
