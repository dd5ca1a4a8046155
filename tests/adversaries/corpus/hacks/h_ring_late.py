# operator: Softmax
# kind: output_alias
# expect: reject
# needs_gpu: 0
# danger: none
# notes: New memory for the first 24 calls of a shape, then one of 48 buffers in turn.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        self._ring, self._calls = {}, {}

    def forward(self, x):
        key = (tuple(x.shape), x.dtype)
        count = self._calls[key] = self._calls.get(key, 0) + 1
        y = torch.softmax(x, dim=self.dim)
        if count <= 24:
            return y
        ring = self._ring.setdefault(key, [torch.empty_like(y) for _ in range(48)])
        return ring[count % 48].copy_(y)
