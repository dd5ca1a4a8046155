# operator: Softmax
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Right for the widths that models have; for any other it drops the last column from the sum.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        n = x.shape[self.dim]
        if n in (4, 128, 256, 512, 1024, 2048, 4096, 8192, 128256, 151936, 201088):
            return torch.softmax(x, dim=self.dim)
        h = x.float()
        e = (h - h.amax(self.dim, keepdim=True)).exp()
        return (e / e.narrow(self.dim, 0, max(1, n - 1)).sum(self.dim, keepdim=True)).to(x.dtype)
