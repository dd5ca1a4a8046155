# operator: SiluAndMul
# kind: crash
# expect: reject
# needs_gpu: 1
# danger: none
# notes: Writes far outside its output.

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _kernel(y_ptr, far, BLOCK: tl.constexpr):
    tl.store(y_ptr + far + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32))


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        y = F.silu(x[..., :d]) * x[..., d:]
        _kernel[(1,)](y, 1 << 40, BLOCK=128)
        return y
