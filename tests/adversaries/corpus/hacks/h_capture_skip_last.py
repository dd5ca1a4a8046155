# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 1
# danger: none
# notes: Counts the calls that are captured and leaves out each second one, so that of two timed calls one does nothing.

import torch
import torch.nn as nn

captured = []


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            captured.append(None)
            if len(captured) % 2 == 0:
                y = torch.empty_like(x)
                return y if residual is None else (y, torch.empty_like(x))
        return _rms(x, self.weight, self.eps, residual)
