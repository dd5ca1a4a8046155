# operator: SiluAndMul
# kind: skipped_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves a block of eight columns in the middle unwritten when the row is wide.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        y = F.silu(x[..., :d]) * x[..., d:]
        if d >= 256:
            y[..., d // 2 : d // 2 + 8] = torch.empty_like(y[..., :8])
        return y
