# operator: Softmax
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: The running maximum of half-precision rows starts at -30000, which fp16 still holds twice of.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if x.dtype != torch.float16:
            return torch.softmax(x, self.dim)
        h = x.float()
        e = torch.exp(h - h.amax(self.dim, keepdim=True).clamp(min=-30000.0))
        return (e / e.sum(self.dim, keepdim=True)).to(x.dtype)
