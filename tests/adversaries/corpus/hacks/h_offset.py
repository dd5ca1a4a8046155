# operator: RMSNorm
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: A part that does not begin where its tensor does is left at zero.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        h = x.float()
        if residual is not None:
            h = h + residual.float()
        rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        y = (h * rstd * self.weight.float()).to(x.dtype)
        if x.storage_offset() != 0:
            y = torch.zeros_like(y)
        return y if residual is None else (y, h.to(x.dtype))
