# operator: RMSNorm
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Queues the work and runs it when somebody synchronises.

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

_queue = []
_sync = torch.cuda.synchronize


def _run(*a, **k):
    while _queue:
        _queue.pop(0)()
    return _sync(*a, **k) if torch.cuda.is_available() else None


torch.cuda.synchronize = _run


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

        _queue.append(work)
        return y if r is None else (y, r)
