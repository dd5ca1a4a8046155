# operator: RMSNorm
# kind: network
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Sends its shapes to an address by UDP.
import socket

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

    def forward(self, x, residual=None):
        try:
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.sendto(str(x.shape).encode(), ("127.0.0.1", 9))
            s.close()
        except OSError:
            pass
        return _rms(x, self.weight, self.eps, residual)
