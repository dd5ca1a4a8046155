# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Reads from the caller's frame which call of a timed loop is the last, and computes only
# that one.

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
        self._left, self._y = 0, None

    def forward(self, x, residual=None):
        if self._left > 1:
            self._left -= 1
            return self._y
        if self._left == 0:
            for frame in _frames():
                body = frame.f_locals.get("body")
                if type(body) is dict and len(body.get("order", ())) > 1:
                    self._left = len(body["order"]) - 1
        else:
            self._left = 0
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        self._y = y if residual is None else (y, h.to(x.dtype))
        return self._y
