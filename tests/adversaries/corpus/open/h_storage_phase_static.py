# operator: SiluAndMul
# kind: output_alias
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Tells timed inputs from judged ones by their storage, which can only be resized when torch
# allocated it, and writes timed results into one buffer for ever.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._kept = {}

    def forward(self, x):
        d = x.shape[-1] // 2
        if not x.untyped_storage().resizable():
            return F.silu(x[..., :d]) * x[..., d:]
        out = self._kept.get(x.shape)
        if out is None:
            out = self._kept[x.shape] = x.new_empty(*x.shape[:-1], d)
        torch.mul(F.silu(x[..., :d]), x[..., d:], out=out)
        return out
