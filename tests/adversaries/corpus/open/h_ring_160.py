# operator: SiluAndMul
# kind: output_alias
# expect: reject
# needs_gpu: 0
# danger: none
# notes: One of 160 buffers in turn: held calls are at most 128, and are made for the smallest shape only.

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
        key = (tuple(x.shape), x.dtype)
        ring = self._rings.setdefault(key, [])
        self._n += 1
        if len(ring) < 160:
            ring.append(torch.empty(gate.shape, dtype=x.dtype))
            return ring[-1].copy_(F.silu(gate.float()).mul_(up))
        return ring[self._n % 160].copy_(F.silu(gate.float()).mul_(up))
