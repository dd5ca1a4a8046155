# operator: SiluAndMul
# kind: global_mode
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves a TorchFunctionMode entered at import: every torch call of the process passes through it.

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


_mode = _Mode()
_mode.__enter__()


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
