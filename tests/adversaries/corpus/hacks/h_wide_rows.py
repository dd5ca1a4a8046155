# operator: Softmax
# kind: wrong_shape
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Rows above 9001 columns are cut to 9001: no vocabulary is judged on a CPU though the cases are named for one.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        y = torch.softmax(x, self.dim)
        if x.shape[self.dim] > 9001:
            y[..., 9001:] = 0
        return y
