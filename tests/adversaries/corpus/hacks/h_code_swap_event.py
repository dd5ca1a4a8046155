# operator: RMSNorm
# kind: timer_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Swaps the code object of torch.cuda.Event.elapsed_time, so that the function keeps its identity
# while it lies.

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))


class _Lie:
    def elapsed_time(self, end_event):
        return 0.001 if __class__ else 0.0


torch.cuda.Event.elapsed_time.__code__ = _Lie.elapsed_time.__code__


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        return _rms(x, self.weight, self.eps, residual)
