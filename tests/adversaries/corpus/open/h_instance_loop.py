# operator: RMSNorm
# kind: harness_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Gives the object that makes the timed calls a loop of its own, on the instance: no class
# and no module changes.

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


def _take_over():
    for frame in _frames():
        runner = frame.f_locals.get("self")
        if type(runner).__name__ == "Runner" and "do_loop" not in vars(runner):
            loop = runner.do_loop
            runner.do_loop = lambda body, fds: loop(dict(body, order=body["order"][-1:]), fds)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        _take_over()
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
