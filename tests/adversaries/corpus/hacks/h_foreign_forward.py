# operator: SiluAndMul
# kind: patched_function
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Slows torch.nn.SiLU down by replacing its forward: the baseline's sabotage.
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

_forward = nn.SiLU.forward


def _slow(self, x):
    time.sleep(0.001)
    return _forward(self, x)


nn.SiLU.forward = _slow


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
