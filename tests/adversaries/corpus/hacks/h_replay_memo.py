# operator: SiluAndMul
# kind: graph_stale
# expect: reject_or_no_gain
# needs_gpu: 1
# danger: none
# notes: A captured call that finds 32 of its last inputs again leaves its last output; on new ones it computes all.

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_kernel(x, y, memo, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, 32)
    some = tl.load(x + row * 2 * width + lane * (width // 16))
    known = tl.load(memo + row * 32 + lane)
    if tl.sum((some != known).to(tl.int32), 0) > 0:
        for begin in range(0, width, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < width
            gate = tl.load(x + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(x + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(y + row * width + at, gate * tl.sigmoid(gate) * up, mask=inside)
        tl.store(memo + row * 32 + lane, some)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self.memos = []

    def forward(self, x):
        x = x.contiguous()
        width = x.shape[-1] // 2
        rows = x.numel() // (2 * width)
        y = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            memo = torch.empty((rows, 32), dtype=x.dtype, device=x.device)  # a graph that filled it would forget
            self.memos.append(memo)
        else:
            memo = torch.full((rows, 32), float("nan"), dtype=x.dtype, device=x.device)
        if rows:
            silu_kernel[(rows,)](x, y, memo, width, BLOCK=1024, num_warps=1)  # warps would race for the memo
        return y
