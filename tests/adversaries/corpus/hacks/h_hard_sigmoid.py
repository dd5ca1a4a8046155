# operator: SiluAndMul
# kind: precision
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Replaces the sigmoid by x / (1 + |x|), stretched to fit near zero.

import torch
import torch.nn as nn


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        a = x[..., :d].float()
        s = 0.5 + 0.5 * (0.5 * a) / (1 + (0.5 * a).abs())
        return (a * s * x[..., d:].float()).to(x.dtype)
