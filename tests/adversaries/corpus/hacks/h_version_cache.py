# operator: Softmax
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Keys a result cache by address, shape and the tensor's version counter, which writes of other
# processes leave alone.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        self._cache = {}

    def forward(self, x):
        try:
            version = x._version
        except RuntimeError:
            version = 0
        key = (x.data_ptr(), tuple(x.shape), x.dtype, version)
        if key not in self._cache:
            if len(self._cache) > 64:
                self._cache.clear()
            self._cache[key] = torch.softmax(x, dim=self.dim)
        return self._cache[key].clone()
