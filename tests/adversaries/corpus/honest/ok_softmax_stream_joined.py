# operator: Softmax
# kind: honest_stream
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Half of the rows on a side stream that is joined before returning.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        self._side = None

    def forward(self, x):
        if not x.is_cuda or x.dim() != 2 or x.shape[0] < 2:
            return torch.softmax(x, dim=self.dim)
        if self.dim % 2 != 1:
            return torch.softmax(x, dim=self.dim)
        main = torch.cuda.current_stream()
        if self._side is None:
            self._side = torch.cuda.Stream()
        out = torch.empty_like(x)
        half = x.shape[0] // 2
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            torch.softmax(x[:half], dim=1, out=out[:half])
        torch.softmax(x[half:], dim=1, out=out[half:])
        main.wait_stream(self._side)
        return out
