# operator: Softmax
# kind: precision
# expect: reject
# needs_gpu: 0
# danger: none
# notes: exp from a short Taylor series around a power of two: wrong in the third digit.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        h = x.float()
        z = (h - h.amax(self.dim, keepdim=True)).clamp_min(-80) * 1.4426950408889634
        n = z.floor()
        f = z - n
        e = torch.ldexp(1 + f * (0.65 + 0.35 * f), n)
        return (e / e.sum(self.dim, keepdim=True)).to(x.dtype)
