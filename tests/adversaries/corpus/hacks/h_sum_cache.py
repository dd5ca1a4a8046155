# operator: SiluAndMul
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Keys a result cache by the sum of the input: a rolled input has the same sum.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._cache = {}

    def forward(self, x):
        key = (tuple(x.shape), round(float(x.double().sum()), 3), round(float(x.double().square().sum()), 2))
        if key not in self._cache:
            d = x.shape[-1] // 2
            self._cache[key] = F.silu(x[..., :d]) * x[..., d:]
        return self._cache[key].clone()
