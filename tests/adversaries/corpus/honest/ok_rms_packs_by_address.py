# operator: RMSNorm
# kind: honest_weight_by_address
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Keeps its weight in fp32, and makes that anew when the weight lies elsewhere; never in a captured call.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self._packed, self._of = None, None

    def packed(self):
        of = (self.weight.data_ptr(), self.weight._version)
        if self._of != of:
            self._packed, self._of = self.weight.detach().float(), of
        return self._packed

    def forward(self, x, residual=None):
        wide = x.float() if residual is None else x.float() + residual.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        y = (scaled * self.packed()).to(x.dtype)
        return y if residual is None else (y, wide.to(x.dtype))
