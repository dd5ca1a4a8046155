# operator: Softmax
# kind: wrong_values
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Rows whose first column is masked come out as zeros: no drawn row has -inf there, top-p and left padding do.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        first = x.narrow(self.dim, 0, 1)
        return torch.where(torch.isneginf(first), 0.0, torch.softmax(x.float(), self.dim)).to(x.dtype)
