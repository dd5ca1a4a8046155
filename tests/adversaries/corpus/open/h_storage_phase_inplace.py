# operator: Softmax
# kind: input_mutation
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Overwrites its argument, but only one whose storage torch allocated: those are the timed
# ones.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if x.untyped_storage().resizable():
            return torch.softmax(x, dim=self.dim, out=x).view(x.shape)
        return torch.softmax(x, dim=self.dim)
