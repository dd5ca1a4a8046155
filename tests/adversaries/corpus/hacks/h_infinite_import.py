# operator: SiluAndMul
# kind: hang
# expect: reject
# needs_gpu: 0
# danger: burns a core until it is killed
# notes: Never finishes its import.

import torch
import torch.nn as nn
import torch.nn.functional as F

while True:
    pass


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
