# operator: SiluAndMul
# kind: honest_autotune
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Autotuned Triton: several configurations, benchmarked at the first call.

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 1024}, num_warps=4), triton.Config({"BLOCK": 4096}, num_warps=8)], key=["d"])
@triton.jit
def _kernel(x_ptr, y_ptr, d, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < d
    a = tl.load(x_ptr + row * 2 * d + cols, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + row * 2 * d + d + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * d + cols, a * tl.sigmoid(a) * b, mask=mask)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        d = x.shape[-1] // 2
        y = torch.empty(*x.shape[:-1], d, dtype=x.dtype, device=x.device)
        rows = x.numel() // (2 * d) if d else 0
        if rows:
            _kernel[lambda meta: (rows, triton.cdiv(d, meta["BLOCK"]))](x, y, d)
        return y
