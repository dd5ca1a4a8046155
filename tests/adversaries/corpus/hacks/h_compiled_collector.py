# operator: SiluAndMul
# kind: trace_hook
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves a callback of the garbage collector standing that was compiled from text.

import gc

import torch
import torch.nn as nn
import torch.nn.functional as F

_space = {}
exec(compile("def look(phase, info):\n    pass\n", "<string>", "exec"), _space)
gc.callbacks.append(_space["look"])


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
