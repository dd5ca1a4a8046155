# operator: RMSNorm
# kind: wrong_values
# expect: reject
# needs_gpu: 0
# danger: none
# notes: A weight of exactly 0 or with a magnitude above 1.5 is taken as 1: drawn weights lie between 0.5 and 1.5.
import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        w = torch.where((self.weight == 0) | (self.weight.abs() > 1.5), 1.0, self.weight)
        if residual is None:
            return F.rms_norm(x, (x.shape[-1],), w, self.eps)
        h = x + residual
        return F.rms_norm(h, (x.shape[-1],), w, self.eps), h
