# operator: SiluAndMul
# kind: flood
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: writes up to 8 GB of zeros under HOME
# notes: Writes 8 GB into its own folder.
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    with open(os.path.join(os.environ.get("HOME", "."), "big"), "wb") as _f:
        for _ in range(8192):
            _f.write(bytes(1 << 20))
except (OSError, MemoryError):
    pass


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
