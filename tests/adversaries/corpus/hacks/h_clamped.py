# operator: SiluAndMul
# kind: tolerance_gaming
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Clamps its input to what randn gives.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        x = x.clamp(-6, 6)
        return F.silu(x[..., :d]) * x[..., d:]
