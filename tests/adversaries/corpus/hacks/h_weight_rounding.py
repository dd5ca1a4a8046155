# operator: RMSNorm
# kind: state_mutation
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Rounds its weight to a few bits in the first call.

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self._ready = False

    def forward(self, x, residual=None):
        if not self._ready:
            self.weight.data.mul_(8).round_().div_(8)
            self._ready = True
        return _rms(x, self.weight, self.eps, residual)
