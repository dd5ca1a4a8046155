# operator: Softmax
# kind: harness_kill
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: SIGKILL to all processes of its user
# notes: Signals every process it may.
import ctypes

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        ctypes.CDLL(None).kill(-1, 9)
        return torch.softmax(x, dim=self.dim)
