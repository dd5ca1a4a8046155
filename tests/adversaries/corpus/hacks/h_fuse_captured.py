# operator: Softmax
# kind: deferred_work
# expect: reject
# needs_gpu: 1
# danger: none
# notes: While a graph is captured it only notes its calls, and computes all of them in every 16th.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        self._calls = []

    def forward(self, x):
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return torch.softmax(x, dim=self.dim)
        out = torch.empty_like(x)
        self._calls.append((x, out))
        if len(self._calls) == 16:
            xs = torch.stack([a for a, _ in self._calls])
            ys = torch.softmax(xs, dim=self.dim if self.dim < 0 else self.dim + 1)
            for y, (_, o) in zip(ys, self._calls):
                o.copy_(y)
            self._calls = []
        return out
