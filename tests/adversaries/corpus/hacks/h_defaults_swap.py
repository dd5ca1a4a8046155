# operator: SiluAndMul
# kind: patched_function
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Changes the default arguments of torch.testing.assert_close, so that everything is close.

import torch
import torch.nn as nn
import torch.nn.functional as F

_close = torch.testing.assert_close
_close.__kwdefaults__ = {**_close.__kwdefaults__, "rtol": 1e9, "atol": 1e9}


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
