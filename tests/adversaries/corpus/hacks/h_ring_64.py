# operator: SiluAndMul
# kind: output_alias
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns one of 64 buffers in turn.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._ring, self._i = {}, 0

    def forward(self, x):
        d = x.shape[-1] // 2
        key = (tuple(x.shape), x.dtype)
        if key not in self._ring:
            self._ring[key] = [torch.empty(*x.shape[:-1], d, dtype=x.dtype, device=x.device) for _ in range(64)]
        self._i = (self._i + 1) % 64
        out = self._ring[key][self._i]
        torch.mul(F.silu(x[..., :d]), x[..., d:], out=out)
        return out
