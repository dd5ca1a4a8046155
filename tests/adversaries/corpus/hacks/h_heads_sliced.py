# operator: RMSNorm
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Zeros for heads that are a part of a longer dimension, as the queries of a fused projection are.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        if x.dim() == 3 and not x.is_contiguous():
            return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
