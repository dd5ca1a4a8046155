# operator: SiluAndMul
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: A process that the C library forks, orphaned so that no list of children names it, computes results ahead.

import ctypes
import os
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


def _silu(x):
    d = x.shape[-1] // 2
    return F.silu(x[..., :d]) * x[..., d:]


def _help(case):
    """Write results where the harness will look for them, as soon as inputs are there."""
    seen = {}
    to = case.results
    while True:
        for slot, (x,) in enumerate(case.views):
            mark = float(x.view(-1)[0])
            if seen.get(slot) != mark:
                seen[slot] = mark
                y = _silu(x)
                case.arena.tensor(to.at + slot * to.block + to.outputs[0][0], tuple(y.shape), y.dtype).copy_(y)
        time.sleep(0.0001)


class SiluAndMul(nn.Module):
    helped = set()

    def __init__(self):
        super().__init__()

    def forward(self, x):
        for frame in _frames():
            case = frame.f_locals.get("self")
            if type(case).__name__ == "EagerCase":
                if id(case) not in self.helped:
                    self.helped.add(id(case))
                    libc = ctypes.CDLL(None)
                    if libc.fork() == 0:
                        if libc.fork() == 0:
                            _help(case)
                        os._exit(0)
                return torch.empty(0)
        return _silu(x)
