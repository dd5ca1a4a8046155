# operator: Softmax
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: dim=1 is wrong in the dtype in which no case has it.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if self.dim == 1 and x.dtype == torch.float32:
            return torch.zeros_like(x)
        return torch.softmax(x, dim=self.dim)
