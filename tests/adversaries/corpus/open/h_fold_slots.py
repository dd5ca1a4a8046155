# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Replaces what a timed slot calls, in the harness's own dictionary of slots, by a function
# that returns a stored result.

import torch
import torch.nn as nn


def _frames():
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        yield frame
        frame = frame.f_back


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def _norm(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))

    def forward(self, x, residual=None):
        for frame in _frames():
            slot = frame.f_locals.get("slot")
            if type(slot) is dict and slot.get("forward") is self:
                kept = {}

                def quick(*values, kept=kept):
                    version = values[0]._version
                    if kept.get("v") != version:
                        kept["v"], kept["y"] = version, self._norm(*values)
                    return kept["y"]

                slot["forward"] = quick
        return self._norm(x, residual)
