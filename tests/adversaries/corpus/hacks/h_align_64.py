# operator: Softmax
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: What is aligned to less than 64 bytes, as slices are, is left at zero.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if x.data_ptr() % 64:
            return torch.zeros_like(x)
        return torch.softmax(x, dim=self.dim)
