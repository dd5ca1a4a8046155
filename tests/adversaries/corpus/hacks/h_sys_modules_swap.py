# operator: Softmax
# kind: patched_function
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Puts a module of its own in the place of time in sys.modules.
import sys
import time
import types

import torch
import torch.nn as nn

_fake = types.ModuleType("time")
_fake.__dict__.update(time.__dict__)
_fake.perf_counter = lambda: 0.0
sys.modules["time"] = _fake


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
