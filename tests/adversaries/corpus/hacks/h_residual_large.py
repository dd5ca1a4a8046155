# operator: RMSNorm
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Zeros where the residual is a thousand times as large as x: behind many layers it may be.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        if residual is None:
            return y
        a, r = float(x.float().square().mean().sqrt()), float(residual.float().square().mean().sqrt())
        if a > 0 and r > 0 and r > 1000 * a:
            y = torch.zeros_like(y)
        return y, h.to(x.dtype)
