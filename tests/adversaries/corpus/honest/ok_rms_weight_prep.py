# operator: RMSNorm
# kind: honest_weight_prep
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Prepares an fp32 copy of its weight after loading, or at the first call.

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
        self._wide = None

    def process_weights_after_loading(self):
        self._wide = self.weight.detach().float().clone()

    def forward(self, x, residual=None):
        if self._wide is None or self._wide.device != x.device:
            self.process_weights_after_loading()
        return _rms(x, self._wide, self.eps, residual)
