# operator: RMSNorm
# kind: honest_strides
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Makes its arguments contiguous where they are not, and works on rows.

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
        shape = x.shape
        rows = x.contiguous().view(-1, shape[-1])
        other = None if residual is None else residual.contiguous().view(-1, shape[-1])
        got = _rms(rows, self.weight, self.eps, other)
        return got.view(shape) if residual is None else (got[0].view(shape), got[1].view(shape))
