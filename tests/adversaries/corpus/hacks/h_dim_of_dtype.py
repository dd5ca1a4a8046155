# operator: Softmax
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Zeros for the dim and dtype that no case has together.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if x.dtype == torch.bfloat16 and self.dim == -1:
            return torch.zeros_like(x)
        return torch.softmax(x, self.dim)
