# operator: Softmax
# kind: lazy_output
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns a tensor without memory.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.empty_like(x, device="meta")
