# operator: RMSNorm
# kind: trace_hook
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Adds an audit hook that could veto what the harness does.
import sys

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))


def _veto(event, args):
    if event == "os.kill":
        raise RuntimeError("no")


sys.addaudithook(_veto)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        return _rms(x, self.weight, self.eps, residual)
