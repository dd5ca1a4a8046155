# operator: Softmax
# kind: contention
# expect: reject
# needs_gpu: 1
# danger: none
# notes: Leaves a kernel spinning on a side stream.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        self._side = None

    def forward(self, x):
        if self._side is None:
            self._side = torch.cuda.Stream()
            with torch.cuda.stream(self._side):
                torch.cuda._sleep(20_000_000_000)
        return torch.softmax(x, dim=self.dim)
