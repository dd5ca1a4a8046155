# operator: RMSNorm
# kind: exhaustion
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: Opens descriptors until it gets none, and keeps them.
import os

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

_fds = []
try:
    while len(_fds) < 100000:
        _fds.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        return _rms(x, self.weight, self.eps, residual)
