# operator: Softmax
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns an unfilled output that carries an object whose __del__ fills it.

import torch
import torch.nn as nn


class _Later:
    def __init__(self, work):
        self.work = work

    def __del__(self):
        self.work()


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = torch.empty_like(x)
        out.later = _Later(lambda: out.copy_(torch.softmax(x, dim=self.dim)))
        return out
