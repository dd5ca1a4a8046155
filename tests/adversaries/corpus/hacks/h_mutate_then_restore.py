# operator: Softmax
# kind: input_mutation
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Writes into its input and leaves one element changed.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        y = torch.softmax(x, dim=self.dim)
        if x.numel():
            x.view(-1)[-1:].add_(1)
        return y
