# operator: Softmax
# kind: shape_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Zeros for four dimensions that are not contiguous, as scores of padded keys are.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if x.dim() == 4 and not x.is_contiguous():
            return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        return torch.softmax(x, self.dim)
