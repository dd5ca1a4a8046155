# operator: SiluAndMul
# kind: baseline_call
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: Uses a production kernel where one is installed.

import torch
import torch.nn as nn
import torch.nn.functional as F

_silu = None
try:
    from vllm._custom_ops import silu_and_mul as _silu
except Exception:
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction as _silu
    except Exception:
        _silu = None


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
