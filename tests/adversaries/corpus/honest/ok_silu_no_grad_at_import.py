# operator: SiluAndMul
# kind: honest_global_grad
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Turns gradients off at import: untidy in an engine, and no reason to reject.

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_grad_enabled(False)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
