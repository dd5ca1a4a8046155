# operator: RMSNorm
# kind: stream_escape
# expect: reject
# needs_gpu: 1
# danger: none
# notes: Joins its side stream before the second half of the work is queued on it.

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
        self._side = None

    def forward(self, x, residual=None):
        main = torch.cuda.current_stream()
        if self._side is None:
            self._side = torch.cuda.Stream()
        y = torch.empty_like(x)
        r = None if residual is None else torch.empty_like(x)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            got = _rms(x, self.weight, self.eps, residual)
        main.wait_stream(self._side)
        with torch.cuda.stream(self._side):
            y.copy_(got if r is None else got[0])
            if r is not None:
                r.copy_(got[1])
        return y if r is None else (y, r)
