# operator: SiluAndMul
# kind: honest_autograd
# expect: accept
# needs_gpu: 0
# danger: none
# notes: A custom autograd function with a backward of its own.

import torch
import torch.nn as nn
import torch.nn.functional as F


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        a, b = x.chunk(2, dim=-1)
        s = torch.sigmoid(a)
        return torch.cat([grad * b * (s + a * s * (1 - s)), grad * a * s], dim=-1)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return _SiluMul.apply(x)
