# operator: Softmax
# kind: nonfinite
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves out the subtraction of the maximum: overflows on large inputs.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        e = x.float().exp()
        return (e / e.sum(self.dim, keepdim=True)).to(x.dtype)
