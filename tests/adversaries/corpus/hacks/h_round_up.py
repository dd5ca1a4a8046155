# operator: Softmax
# kind: global_state
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Sets the rounding mode of the processor through the C library and leaves it.

import ctypes
import torch
import torch.nn as nn


ctypes.CDLL("libm.so.6").fesetround(0x800)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
