# operator: Softmax
# kind: contention
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: Pins the process to one core and asks for a lower priority.
import os

import torch
import torch.nn as nn

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.nice(5)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
