# operator: Softmax
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: SystemExit(0) in the second call.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        self._n = 0

    def forward(self, x):
        self._n += 1
        if self._n == 2:
            raise SystemExit(0)
        return torch.softmax(x, dim=self.dim)
