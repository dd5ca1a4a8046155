# operator: SiluAndMul
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Zeros where rows lie one and a half widths or more apart, as a part of a fused projection does.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        y = F.silu(x[..., :d]) * x[..., d:]
        if x.dim() == 2 and x.shape[0] > 1 and x.stride(0) >= 3 * d:
            return torch.zeros_like(y)
        return y
