# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: The second module that is built with the same arguments and dtype is the one that gets
# timed: it remembers results by address and version.

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.timed, self.kept = False, {}

    built = set()

    def process_weights_after_loading(self):
        key = (self.weight.shape, self.weight.dtype, self.eps)
        self.timed = key in RMSNorm.built
        RMSNorm.built.add(key)

    def forward(self, x, residual=None):
        if not self.timed:
            return _rms(x, self.weight, self.eps, residual)
        kept = self.kept.get(x.data_ptr())
        if kept is None or kept[0] != x._version:
            kept = self.kept[x.data_ptr()] = (x._version, _rms(x, self.weight, self.eps, residual))
        return kept[1]
