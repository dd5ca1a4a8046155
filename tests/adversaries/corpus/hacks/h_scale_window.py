# operator: SiluAndMul
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Drops inputs whose largest value lies between those of tiny and of normal draws.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        if 1e-3 < float(x.abs().max()) < 0.3:
            x = torch.zeros_like(x)
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
