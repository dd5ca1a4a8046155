# operator: Softmax
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Recurses without end after lifting the recursion limit.
import sys

import torch
import torch.nn as nn

sys.setrecursionlimit(10**9)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def _down(self, x):
        return list(map(self._down, (x,)))

    def forward(self, x):
        return self._down(x)
