# operator: RMSNorm
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Keys a result cache by shape and a few sampled values, so that a change between the samples goes
# unnoticed.

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
        self._cache = {}

    def forward(self, x, residual=None):
        flat = x.reshape(-1)
        step = max(1, flat.numel() // 16)
        key = (tuple(x.shape), residual is None, tuple(flat[::step][:16].tolist()))
        if residual is not None:
            key += tuple(residual.reshape(-1)[::step][:16].tolist())
        if key not in self._cache:
            self._cache[key] = _rms(x, self.weight, self.eps, residual)
        got = self._cache[key]
        return got.clone() if residual is None else (got[0].clone(), got[1].clone())
