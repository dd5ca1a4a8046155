# operator: SiluAndMul
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns an unfilled output and computes when the input is dropped.
import weakref

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        out = torch.empty(*x.shape[:-1], d, dtype=x.dtype, device=x.device)
        kept = x.detach().view(x.shape)
        weakref.finalize(x, lambda: torch.mul(F.silu(kept[..., :d]), kept[..., d:], out=out))
        return out
