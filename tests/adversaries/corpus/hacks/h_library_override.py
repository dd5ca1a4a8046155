# operator: SiluAndMul
# kind: patched_function
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Registers its own kernel for aten::silu with the dispatcher: every module of the process then
# runs it.

import torch
import torch.nn as nn
import torch.nn.functional as F

_lib = torch.library.Library("aten", "IMPL")
_lib.impl("silu", lambda x: x * torch.sigmoid(x), "CPU")
if torch.cuda.is_available():
    _lib.impl("silu", lambda x: x * torch.sigmoid(x), "CUDA")


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
