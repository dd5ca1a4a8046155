# operator: SiluAndMul
# kind: contract
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Reads the memory behind x as if it were contiguous.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        flat = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride(), x.storage_offset())
        d = x.shape[-1] // 2
        return F.silu(flat[..., :d]) * flat[..., d:]
