# operator: SiluAndMul
# kind: lazy_output
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Turns a plain tensor into a subclass by assigning its class after it was made.

import torch
import torch.nn as nn
import torch.nn.functional as F


class _Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        out = (F.silu(x[..., :d]) * x[..., d:]).as_subclass(_Lazy)
        return out
