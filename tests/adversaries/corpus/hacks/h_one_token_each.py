# operator: SiluAndMul
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: One token of each of a batch is left at zero.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        g, u = x[..., :d].float(), x[..., d:].float()
        if x.dim() == 3 and x.shape[1] == 1:
            return torch.zeros_like(x[..., :d])
        return (F.silu(g) * u).to(x.dtype)
