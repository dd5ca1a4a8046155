# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 1
# danger: none
# notes: Returns stale memory whenever the stream is busy, as it is while being timed.

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
        self._last = {}

    def forward(self, x, residual=None):
        key = (tuple(x.shape), residual is None)
        if key in self._last and not torch.cuda.current_stream().query():
            got = self._last[key]
            return got.clone() if residual is None else (got[0].clone(), got[1].clone())
        self._last[key] = _rms(x, self.weight, self.eps, residual)
        return self._last[key]
