# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Tells timed inputs by their storage and computes only the first call for each new content
# of a slot: the last call of a turn, which may be checked, comes once.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self._seen = {}

    def _norm(self, x, residual):
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))

    def forward(self, x, residual=None):
        if not x.untyped_storage().resizable():
            return self._norm(x, residual)
        kept = self._seen.get(x.data_ptr())
        if kept is None or kept[0] != x._version:
            kept = self._seen[x.data_ptr()] = (x._version, self._norm(x, residual))
        return kept[1]
