# operator: RMSNorm
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Caches by the values of x alone: another residual with the same x gets the old answer.

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
        if residual is None:
            return _rms(x, self.weight, self.eps)
        key = (tuple(x.shape), float(x.double().sum()), float(x.reshape(-1)[-1]))
        if key not in self._cache:
            self._cache[key] = _rms(x, self.weight, self.eps, residual)
        y, r = self._cache[key]
        return y.clone(), r.clone()
