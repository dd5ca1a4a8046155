# operator: SiluAndMul
# kind: harness_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Replaces a function of torch by one compiled from text that claims the name and the module of the original.

import torch
import torch.nn as nn
import torch.nn.functional as F

_space = {"inner": torch.cuda.synchronize}
exec(compile("def synchronize(device=None):\n    pass\n", "<torch.cuda>", "exec"), torch.cuda.__dict__)
torch.cuda.synchronize.__module__ = "torch.cuda"


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
