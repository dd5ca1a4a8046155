# operator: Softmax
# kind: honest_cache
# expect: accept
# needs_gpu: 0
# danger: none
# notes: functools.cache on a helper that sees shapes only.
import functools

import torch
import torch.nn as nn


@functools.cache
def _plan(n):
    return n > 1 << 16


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if _plan(x.shape[self.dim]):
            return torch.softmax(x, dim=self.dim)
        h = x.float()
        e = (h - h.amax(self.dim, keepdim=True)).exp_()
        return (e / e.sum(self.dim, keepdim=True)).to(x.dtype)
