# operator: SiluAndMul
# kind: phase_detect
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: Finds the list of calls that a timed loop still has to make, through the frames of an
# exception, and cuts it down to the last one.

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


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        for frame in _frames():
            body = frame.f_locals.get("body")
            if type(body) is dict and len(body.get("order", ())) > 2:
                del body["order"][1:-1]
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
