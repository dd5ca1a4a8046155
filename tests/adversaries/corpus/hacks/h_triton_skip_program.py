# operator: Softmax
# kind: skipped_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Triton kernel whose last program returns early when there are many.

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, n, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    if row < rows - 1:
        x = tl.load(x_ptr + row * n + cols, mask=mask, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, 0))
        tl.store(y_ptr + row * n + cols, e / tl.sum(e, 0), mask=mask)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if self.dim % x.dim() != x.dim() - 1 or x.numel() == 0:
            return torch.softmax(x, dim=self.dim)
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        rows = x.numel() // n
        _kernel[(rows,)](x, y, n, rows if rows >= 8 else rows + 1, BLOCK=triton.next_power_of_2(n))
        return y
