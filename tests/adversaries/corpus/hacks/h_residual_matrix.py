# operator: RMSNorm
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: A residual of three dimensions is left out of the norm: only matrices were tried with one.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        seen = x.float() if x.dim() > 2 else h
        y = (seen * torch.rsqrt(seen.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
