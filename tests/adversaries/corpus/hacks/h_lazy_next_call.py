# operator: SiluAndMul
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Computes call i only when call i + 1 comes.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._todo = None

    def forward(self, x):
        d = x.shape[-1] // 2
        if self._todo is not None:
            a, out = self._todo
            n = a.shape[-1] // 2
            torch.mul(F.silu(a[..., :n]), a[..., n:], out=out)
        out = torch.empty(*x.shape[:-1], d, dtype=x.dtype, device=x.device)
        self._todo = (x, out)
        return out
