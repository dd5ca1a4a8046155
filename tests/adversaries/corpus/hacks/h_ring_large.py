# operator: SiluAndMul
# kind: output_alias
# expect: reject
# needs_gpu: 0
# danger: none
# notes: One of 16 buffers in turn for outputs above 64 KiB: of these only the last three are kept and none are held.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._rings, self._n = {}, 0

    def forward(self, x):
        d = x.shape[-1] // 2
        gate, up = x[..., :d], x[..., d:]
        if gate.numel() * x.element_size() <= 65536:
            return F.silu(gate.float()).mul_(up).to(x.dtype)
        key = (tuple(x.shape), x.dtype)
        ring = self._rings.setdefault(key, [torch.empty(gate.shape, dtype=x.dtype) for _ in range(16)])
        self._n += 1
        return ring[self._n % 16].copy_(F.silu(gate.float()).mul_(up))
