# operator: Softmax
# kind: honest_triton
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Kernels made by a factory that lru_cache keeps, launched with settings by width.
import functools

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, 0), mask=mask)


@functools.lru_cache(maxsize=64)
def _launcher(n):
    block = triton.next_power_of_2(n)
    warps = 4 if block <= 2048 else 8
    return lambda x, y, rows: _kernel[(rows,)](x, y, n, BLOCK=block, num_warps=warps)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        n = x.shape[-1]
        if self.dim % x.dim() != x.dim() - 1 or not x.numel() or n > 65536:
            return torch.softmax(x, dim=self.dim)
        x = x.contiguous()
        y = torch.empty_like(x)
        _launcher(n)(x, y, x.numel() // n)
        return y
