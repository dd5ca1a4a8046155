# operator: Softmax
# kind: global_mode
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves a TorchDispatchMode entered at import.

import torch
import torch.nn as nn
from torch.utils._python_dispatch import TorchDispatchMode


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


_mode = _Mode()
_mode.__enter__()


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
