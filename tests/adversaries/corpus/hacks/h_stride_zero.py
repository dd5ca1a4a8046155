# operator: Softmax
# kind: tolerance_gaming
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns one row expanded over all rows with stride 0.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        row = torch.softmax(x.reshape(-1, x.shape[-1])[:1], dim=-1)
        return row.expand(x.numel() // x.shape[-1], x.shape[-1]).reshape(x.shape) if x.dim() > 2 else row.expand(x.shape)
