# operator: SiluAndMul
# kind: global_state
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Turns TF32 on in forward and leaves it on.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.set_float32_matmul_precision("medium")
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
