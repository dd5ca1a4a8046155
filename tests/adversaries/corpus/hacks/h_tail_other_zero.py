# operator: Softmax
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: The tail of a wide row is loaded as 0, which hides a maximum below it.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        n = x.shape[-1]
        if not ((n & (n - 1)) == 0):
            m = x.float().amax(-1, keepdim=True).clamp(min=0.0); e = torch.exp(x.float() - m); return (e / e.sum(-1, keepdim=True)).to(x.dtype)
        return torch.softmax(x, dim=self.dim)
