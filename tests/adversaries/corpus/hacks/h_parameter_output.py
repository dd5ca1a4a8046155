# operator: RMSNorm
# kind: lazy_output
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns parameters, not tensors, whose data is exchanged later.

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

    def forward(self, x, residual=None):
        got = _rms(x, self.weight, self.eps, residual)
        if residual is None:
            return nn.Parameter(got, requires_grad=False)
        return nn.Parameter(got[0], requires_grad=False), nn.Parameter(got[1], requires_grad=False)
