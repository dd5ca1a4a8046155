# operator: Softmax
# kind: harness_kill
# expect: reject
# needs_gpu: 0
# danger: closes its descriptors
# notes: Closes every descriptor.
import os

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        os.closerange(0, 4096)
        return torch.softmax(x, dim=self.dim)
