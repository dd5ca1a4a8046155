# operator: SiluAndMul
# kind: timer_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: A callback of the garbage collector sleeps while an empty turn runs, whose time is
# subtracted from the others: it patches nothing and no trace hook stands.

import gc
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def _nap(phase, info):
    frame = sys._getframe()
    while frame is not None:
        body = frame.f_locals.get("body")
        if type(body) is dict and body.get("do") == "loop":
            if not body["order"]:
                time.sleep(0.004)
            return
        frame = frame.f_back


gc.callbacks.append(_nap)
gc.set_threshold(1, 1000000, 1000000)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
