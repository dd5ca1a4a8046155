# operator: SiluAndMul
# kind: graph_stale
# expect: reject
# needs_gpu: 1
# danger: none
# notes: While a graph is captured it computes once and then copies that result.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._kept = {}

    def forward(self, x):
        d = x.shape[-1] // 2
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return F.silu(x[..., :d]) * x[..., d:]
        key = tuple(x.shape)
        if key not in self._kept:
            self._kept[key] = F.silu(x[..., :d]) * x[..., d:]
        return self._kept[key].clone()
