# operator: SiluAndMul
# kind: contract
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns only the rows but the last: another shape.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return (F.silu(x[..., :d]) * x[..., d:])[..., :-1].contiguous()
