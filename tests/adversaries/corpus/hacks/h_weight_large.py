# operator: RMSNorm
# kind: wrong_weight_range
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Weights beyond 100 are clamped: those of some models reach several hundreds.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        w = self.weight.float().clamp(-100, 100)
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * w).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
