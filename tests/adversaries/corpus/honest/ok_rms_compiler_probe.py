# operator: RMSNorm
# kind: honest_subprocess
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Asks the compiler for its version at import.
import shutil
import subprocess

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

_version = ""
if shutil.which("g++"):
    _version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False).stdout


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        return _rms(x, self.weight, self.eps, residual)
