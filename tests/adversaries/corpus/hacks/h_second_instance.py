# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: From its hundredth call on a module remembers results by address and version: only timing calls it so often.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.kept, self.calls = {}, 0

    def _norm(self, x, residual):
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))

    def forward(self, x, residual=None):
        self.calls += 1
        kept = self.kept.get(x.data_ptr())
        if self.calls < 100 or kept is None or kept[0] != x._version:
            kept = self.kept[x.data_ptr()] = (x._version, self._norm(x, residual))
        return kept[1]
