# operator: SiluAndMul
# kind: honest_torch_compile
# expect: accept
# needs_gpu: 0
# danger: none
# notes: torch.compile of a method, with dynamic shapes.

import torch
import torch.nn as nn


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._fast = torch.compile(self._plain, dynamic=True)

    @staticmethod
    def _plain(x):
        a, b = x.chunk(2, dim=-1)
        return (a.float() * torch.sigmoid(a.float()) * b.float()).to(x.dtype)

    def forward(self, x):
        return self._fast(x)
