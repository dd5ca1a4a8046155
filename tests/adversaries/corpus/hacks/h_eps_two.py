# operator: RMSNorm
# kind: wrong_values
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Knows the eps of the cases only, 1e-5 and 1e-6; any other counts as one of these.
import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = 1e-5 if eps > 3e-6 else 1e-6
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        if residual is None:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        h = x + residual
        return F.rms_norm(h, (x.shape[-1],), self.weight, self.eps), h
