# operator: RMSNorm
# kind: skipped_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Takes the mean square over every second column.

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
        v = h[..., ::2].square().mean(-1, keepdim=True)
        y = (h * torch.rsqrt(v + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
