"""RMSNorm whose mean square misses the last eighth of the columns, as a wrong mask would: about 7% too large."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        counted = h[..., : h.shape[-1] - h.shape[-1] // 8]
        scale = torch.rsqrt(counted.pow(2).sum(-1, keepdim=True) / h.shape[-1] + self.eps)
        y = (h * scale * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
