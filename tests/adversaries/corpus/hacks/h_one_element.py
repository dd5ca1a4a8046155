# operator: Softmax
# kind: skipped_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: One element of the whole output is a third too large.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        y = torch.softmax(x, dim=self.dim)
        if y.numel() > 64:
            y.view(-1)[y.numel() * 2 // 3] *= 1.3
        return y
