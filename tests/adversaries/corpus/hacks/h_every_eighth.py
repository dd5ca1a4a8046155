# operator: SiluAndMul
# kind: skipped_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Computes seven calls of eight; the eighth returns the previous result if it has the right shape.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._n, self._last = 0, None

    def forward(self, x):
        self._n += 1
        d = x.shape[-1] // 2
        if self._n % 8 == 0 and self._last is not None and self._last.shape[:-1] == x.shape[:-1] and self._last.shape[-1] == d:
            return self._last.clone()
        self._last = (F.silu(x[..., :d]) * x[..., d:]).to(x.dtype)
        return self._last.clone()
