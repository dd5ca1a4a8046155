# operator: RMSNorm
# kind: pdl_race
# expect: reject_or_no_gain
# needs_gpu: 1
# danger: none
# notes: Launches with programmatic dependent launch and never waits for the kernel before it.

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, r_ptr, w_ptr, y_ptr, o_ptr, n, eps, RES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    tl.extra.cuda.gdc_launch_dependents()
    h = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    if RES:
        h += tl.load(r_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(o_ptr + row * n + cols, h, mask=mask)
    y = h / tl.sqrt(tl.sum(h * h, 0) / n + eps)
    tl.store(y_ptr + row * n + cols, y * tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32), mask=mask)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        x = x.contiguous()
        r = x if residual is None else residual.contiguous()
        y, o = torch.empty_like(x), torch.empty_like(x)
        n = x.shape[-1]
        _kernel[(x.numel() // n,)](x, r, self.weight, y, o, n, self.eps, RES=residual is not None,
                                   BLOCK=triton.next_power_of_2(n), num_warps=8, launch_pdl=True)
        return y if residual is None else (y, o)
