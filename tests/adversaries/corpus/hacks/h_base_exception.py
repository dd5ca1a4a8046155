# operator: Softmax
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Raises a BaseException of its own, whose text raises too.

import torch
import torch.nn as nn


class _Odd(BaseException):
    def __str__(self):
        raise _Odd()

    __repr__ = __str__


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        raise _Odd()
