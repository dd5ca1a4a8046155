# operator: RMSNorm
# kind: exhaustion
# expect: reject_or_no_gain
# needs_gpu: 1
# danger: none
# notes: Holds most of the GPU's memory.

import torch
import torch.nn as nn


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
        self._held = []

    def forward(self, x, residual=None):
        if x.is_cuda and not self._held:
            free, _ = torch.cuda.mem_get_info()
            self._held.append(torch.empty(int(free * 0.9), dtype=torch.uint8, device=x.device))
        return _rms(x, self.weight, self.eps, residual)
