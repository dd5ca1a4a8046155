# operator: SiluAndMul
# kind: exhaustion
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: reserves up to 256 GiB of address space
# notes: Asks for memory until it gets none.

import torch
import torch.nn as nn
import torch.nn.functional as F

_held = []
for _ in range(256):
    _held.append(torch.empty(1 << 30, dtype=torch.uint8))


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
