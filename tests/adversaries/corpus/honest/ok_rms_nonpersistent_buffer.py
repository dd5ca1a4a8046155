# operator: RMSNorm
# kind: honest_buffer
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Registers a non-persistent buffer, which no state dict carries.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.register_buffer("scale", torch.tensor(float(hidden_size)), persistent=False)

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        v = h.square().sum(-1, keepdim=True) / self.scale.float()
        y = (h * torch.rsqrt(v + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
