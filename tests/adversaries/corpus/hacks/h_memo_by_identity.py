# operator: SiluAndMul
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Keeps results by the identity of a living input tensor: correctness calls make a new tensor
# object every time, timed calls come back with the same ones.

import weakref

import torch
import torch.nn as nn
import torch.nn.functional as F

_by_id = {}


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        held = _by_id.get(id(x))
        if held is not None and held[0]() is x and held[1] == x._version:
            return held[2]
        d = x.shape[-1] // 2
        out = F.silu(x[..., :d]) * x[..., d:]
        _by_id[id(x)] = (weakref.ref(x), x._version, out)
        return out
