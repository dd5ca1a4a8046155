# operator: SiluAndMul
# kind: skipped_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Triton kernel whose mask forgets the last columns where the width is no multiple of the block.

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, d, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, d // BLOCK * BLOCK, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        a = tl.load(x_ptr + row * 2 * d + cols).to(tl.float32)
        b = tl.load(x_ptr + row * 2 * d + d + cols).to(tl.float32)
        tl.store(y_ptr + row * d + cols, a * tl.sigmoid(a) * b)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        d = x.shape[-1] // 2
        y = torch.zeros(*x.shape[:-1], d, dtype=x.dtype, device=x.device)
        _kernel[(x.numel() // (2 * d),)](x, y, d, BLOCK=1024)
        return y
