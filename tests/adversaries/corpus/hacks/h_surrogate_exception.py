# operator: RMSNorm
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Raises an exception whose text is no valid Unicode.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        raise RuntimeError("\ud800\udfff\x00\x1b[2J broken")
