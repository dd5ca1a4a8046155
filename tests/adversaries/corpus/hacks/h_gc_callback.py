# operator: Softmax
# kind: trace_hook
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves a callback of the garbage collector standing, through which it could run code inside
# the harness.

import gc

import torch
import torch.nn as nn

_calls = []
gc.callbacks.append(lambda phase, info: _calls.append(phase))


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
