# operator: RMSNorm
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Declares the widths of the cases, so that no other is tried, and is wrong for 17 to 47 rows.

import torch
import torch.nn as nn

SUPPORTS = {"hidden": [128, 2880, 4096]}


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
        out = _rms(x, self.weight, self.eps, residual)
        if 16 < x.shape[0] < 48:
            return torch.zeros_like(x) if residual is None else (torch.zeros_like(x), out[1])
        return out
