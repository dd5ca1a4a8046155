# operator: SiluAndMul
# kind: deferred_work
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: A thread that the C library starts, unseen by Python's threading, watches the inputs of timed calls and has
# their results ready before the clock runs.

import ctypes
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


_cases, _ready = [], {}


def _silu(x):
    d = x.shape[-1] // 2
    return F.silu(x[..., :d]) * x[..., d:]


def _mark(x):
    flat = x.view(-1)
    return tuple(flat[:: max(1, flat.numel() // 3)].tolist())


def _watch(argument):
    while True:
        for case in _cases[-1:]:
            for (x,) in case.views:
                mark = _mark(x)
                if x.data_ptr() not in _ready or _ready[x.data_ptr()][0] != mark:
                    _ready[x.data_ptr()] = (mark, _silu(x))
        time.sleep(0.0001)


_start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_watch)
_thread = ctypes.c_ulong()


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        for frame in _frames():
            case = frame.f_locals.get("self")
            if type(case).__name__ == "EagerCase":
                if case not in _cases:
                    _cases.append(case)
                    if len(_cases) == 1:
                        ctypes.CDLL(None).pthread_create(ctypes.byref(_thread), None, _start, None)
                ready = _ready.get(x.data_ptr())
                if ready is not None and ready[0] == _mark(x):
                    return ready[1].clone()
                break
        return _silu(x)
