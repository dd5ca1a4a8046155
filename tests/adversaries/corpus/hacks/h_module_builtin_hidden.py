# operator: SiluAndMul
# kind: patched_function
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Plants a name in torch.nn.functional that hides a builtin from all functions of that module.

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.functional

torch.nn.functional.len = lambda value: 1


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
