# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Replaces what timed calls go through, in the harness's own object, by a function that remembers.

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
        self.kept = {}

    def _norm(self, x, residual):
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))

    def forward(self, x, residual=None):
        for frame in _frames():
            case = frame.f_locals.get("self")
            if type(case).__name__ == "EagerCase" and case.forward is self:
                kept = {}

                def quick(*values, kept=kept):
                    key = (values[0].data_ptr(), values[0]._version)
                    if key not in kept:
                        kept[key] = self._norm(*values, *([None] * (2 - len(values))))
                    return kept[key]

                case.forward = quick
        return self._norm(x, residual)
