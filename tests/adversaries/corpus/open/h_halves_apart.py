# operator: SiluAndMul
# kind: wrong_values
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Wrong where the gate is tiny and the other half large: both halves of a row are always drawn at one scale.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        gate, up = x[..., :d].float(), x[..., d:].float()
        gate = torch.where((gate.abs() < 0.02) & (up.abs() > 2000), 0.0, gate)
        return F.silu(gate).mul_(up).to(x.dtype)
