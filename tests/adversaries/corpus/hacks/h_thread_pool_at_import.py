# operator: RMSNorm
# kind: thread
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Starts a pool at import and hands it the work without waiting for the result.
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

_pool = ThreadPoolExecutor(2)
for _ in range(2):
    _pool.submit(int)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        y = torch.empty_like(x)
        r = None if residual is None else torch.empty_like(x)

        def work():
            got = _rms(x, self.weight, self.eps, residual)
            y.copy_(got if r is None else got[0])
            if r is not None:
                r.copy_(got[1])

        _pool.submit(work)
        return y if r is None else (y, r)
