# operator: Softmax
# kind: oracle_leak
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Reads the memory of its parent through /proc.
import os

import torch
import torch.nn as nn

_found = b""
try:
    with open(f"/proc/{os.getppid() or 1}/maps", "rb") as _f:
        _found = _f.read(4096)
    with open(f"/proc/{os.getppid() or 1}/mem", "rb") as _f:
        _f.seek(int(_found.split(b"-")[0], 16))
        _found = _f.read(64)
except (OSError, ValueError):
    pass


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
