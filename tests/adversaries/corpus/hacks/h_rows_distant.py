# operator: SiluAndMul
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Zeros where rows lie more than four widths apart, as one part of many of a fused projection does.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        y = F.silu(x[..., :d]) * x[..., d:]
        if x.dim() == 2 and x.shape[0] > 1 and x.stride(0) > 8 * d:
            return torch.zeros_like(y)
        return y
