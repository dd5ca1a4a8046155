# operator: SiluAndMul
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: A timer's signal computes the results of the coming turn as soon as its inputs are there, before any clock runs.

import signal

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


_cases, _ready = [], {}


def _silu(x):
    d = x.shape[-1] // 2
    return F.silu(x[..., :d]) * x[..., d:]


def _look(number, frame):
    for case in _cases[-1:]:
        for (x,) in case.views:
            mark = float(x.view(-1)[0])
            if x.data_ptr() not in _ready or _ready[x.data_ptr()][0] != mark:
                _ready[x.data_ptr()] = (mark, _silu(x))


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        for frame in _frames():
            case = frame.f_locals.get("self")
            if type(case).__name__ == "EagerCase":
                if case not in _cases:
                    _cases.append(case)
                    signal.signal(signal.SIGALRM, _look)
                    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
                ready = _ready.get(x.data_ptr())
                if ready is not None and ready[0] == float(x.view(-1)[0]):
                    return ready[1].clone()
                break
        return _silu(x)
