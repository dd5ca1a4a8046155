# operator: SiluAndMul
# kind: timer_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Makes turns without calls slow, which are taken off the others, through the object that makes them.

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


def _take_over():
    for frame in _frames():
        runner = frame.f_locals.get("self")
        if type(runner).__name__ == "Runner":
            kind = type(runner)
            loop = kind.do_loop

            def slowed(self, body, fds):
                answer = loop(self, body, fds)
                if body["idle"]:
                    time.sleep(0.004)
                return answer

            kind.do_loop = slowed
            return True
    return False


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self.done = False

    def forward(self, x):
        self.done = self.done or _take_over()
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
