# operator: Softmax
# kind: exhaustion
# expect: reject
# needs_gpu: 0
# danger: fills memory up to its limit
# notes: Asks for memory and writes to it until it is stopped.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        held = []
        while True:
            held.append(torch.ones(1 << 28, dtype=torch.uint8))
