# operator: Softmax
# kind: process
# expect: reject
# needs_gpu: 0
# danger: up to 600 processes for 20 s
# notes: Forks as often as it may.
import os
import time

import torch
import torch.nn as nn

_n = 0
while _n < 600:
    try:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
    except OSError:
        break
    _n += 1


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
