# operator: RMSNorm
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Recurses without end.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def _down(self, x):
        return self._down(x)

    def forward(self, x, residual=None):
        return self._down(x)
