# operator: Softmax
# kind: precision
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Rounds to bfloat16 first, only where the storage says that nobody compares element
# by element.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if not x.untyped_storage().resizable():
            return torch.softmax(x, dim=self.dim)
        return torch.softmax(x.bfloat16(), dim=self.dim).to(x.dtype)
