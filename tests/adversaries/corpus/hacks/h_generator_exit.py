# operator: Softmax
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: GeneratorExit in the constructor.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        raise GeneratorExit

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
