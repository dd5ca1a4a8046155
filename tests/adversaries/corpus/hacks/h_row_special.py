# operator: SiluAndMul
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Right for power-of-two row counts and below nine rows; otherwise the last row repeats the one
# before.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        y = F.silu(x[..., :d]) * x[..., d:]
        rows = y.numel() // max(d, 1)
        if rows > 8 and rows & (rows - 1):
            flat = y.view(-1, d)
            flat[-1] = flat[-2]
        return y
