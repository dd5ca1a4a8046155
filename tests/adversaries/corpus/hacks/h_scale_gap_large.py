# operator: RMSNorm
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Clamps at 1e6 what is below the huge values of the tests.

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        big = float(x.abs().max())
        if 4e4 < big < 1e13:
            x = x.clamp(-4e4, 4e4)
        return _rms(x, self.weight, self.eps, residual)
