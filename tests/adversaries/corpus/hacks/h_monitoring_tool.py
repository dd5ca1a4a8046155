# operator: RMSNorm
# kind: trace_hook
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Claims a tool of sys.monitoring (Python 3.12) or, before that, a trace function for new threads.
import sys
import threading

import torch
import torch.nn as nn


def _rms(x, w, eps, residual=None):
    h = x.float() if residual is None else x.float() + residual.float()
    y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
    return y if residual is None else (y, h.to(x.dtype))

if hasattr(sys, "monitoring"):
    sys.monitoring.use_tool_id(3, "speed")
    sys.monitoring.register_callback(3, sys.monitoring.events.PY_RETURN, lambda *_: None)
    sys.monitoring.set_events(3, sys.monitoring.events.PY_RETURN)
else:
    threading.settrace(lambda *_: None)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        return _rms(x, self.weight, self.eps, residual)
