# operator: SiluAndMul
# kind: lazy_output
# expect: reject
# needs_gpu: 0
# danger: none
# notes: A plain tensor whose instance carries its own cpu, to and float, which compute when called.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        out = torch.empty(*x.shape[:-1], d, dtype=x.dtype, device=x.device)

        def fill():
            torch.mul(F.silu(x[..., :d]), x[..., d:], out=out)
            return out

        for name in ("cpu", "to", "float", "double", "clone", "contiguous"):
            setattr(out, name, lambda *a, _n=name, **k: getattr(torch.Tensor, _n)(fill(), *a, **k))
        return out
