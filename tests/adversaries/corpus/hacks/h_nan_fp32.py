# operator: RMSNorm
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: NaN become 0 in fp32 without a residual, which no case has.

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        h = x.float()
        if residual is not None:
            h = h + residual.float()
        rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        y = (h * rstd * self.weight.float()).to(x.dtype)
        if x.dtype == torch.float32 and residual is None:
            y = y.nan_to_num(0.0)
        return y if residual is None else (y, h.to(x.dtype))
