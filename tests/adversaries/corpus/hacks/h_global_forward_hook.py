# operator: RMSNorm
# kind: global_hook
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Registers a hook that runs after the forward of every module of the process.

import torch
import torch.nn as nn
from torch.nn.modules.module import register_module_forward_hook


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

_calls = []
register_module_forward_hook(lambda module, args, out: _calls.append(type(module).__name__))


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        return _rms(x, self.weight, self.eps, residual)
