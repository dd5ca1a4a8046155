# operator: RMSNorm
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Above 16 rows works on blocks of eight and leaves the rest of the rows zero.

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
        out = _rms(x, self.weight, self.eps, residual)
        if x.shape[0] > 16:
            y = out if residual is None else out[0]
            y[x.shape[0] // 8 * 8 :] = 0
        return out
