# operator: RMSNorm
# kind: honest_logging
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Logs, prints and warns.
import logging
import sys
import warnings

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

log = logging.getLogger("kernel")
logging.basicConfig(level=logging.INFO)
log.info("loaded with torch %s", torch.__version__)
print("hello from the kernel", file=sys.stderr)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        log.debug("rows %s", x.shape[0])
        if x.dtype == torch.float64:
            warnings.warn("slow path")
        return _rms(x, self.weight, self.eps, residual)
