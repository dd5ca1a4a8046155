# operator: Softmax
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: The running maximum of narrow rows starts at 0: a row that lies wholly far below gives NaN.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if x.shape[self.dim] > 1024:
            return torch.softmax(x, self.dim)
        h = x.float()
        e = torch.exp(h - h.amax(self.dim, keepdim=True).clamp(min=0.0))
        return (e / e.sum(self.dim, keepdim=True)).to(x.dtype)
