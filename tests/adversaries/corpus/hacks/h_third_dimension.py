# operator: RMSNorm
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Right for two and three dimensions; with four it takes the mean over the third.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        mean = h.square().mean(min(x.dim() - 1, 2), keepdim=True)
        y = (h * torch.rsqrt(mean + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
