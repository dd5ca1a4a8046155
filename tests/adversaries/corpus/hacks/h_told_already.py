# operator: SiluAndMul
# kind: harness_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Tells the watching object that everything it could find has been told already.

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def _frames():
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        yield frame
        frame = frame.f_back


class _All(set):
    def __contains__(self, item):
        return True


for _frame in _frames():
    _guards = _frame.f_locals.get("guards")
    if _guards is not None:
        _guards._told = _All()
_clock = time.perf_counter
time.perf_counter = lambda: _clock() * 0.5


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
