# operator: Softmax
# kind: harness_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Replaces the copy of results in the globals of the function that called it, and puts it
# back before it is looked at.

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


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        for frame in _frames():
            space = frame.f_globals
            if "copy_bytes" in space:
                real = space["copy_bytes"]

                def fake(tensor, target, size, space=space, real=real):
                    space["copy_bytes"] = real
                    return real(tensor, target, size)

                space["copy_bytes"] = fake
        return torch.softmax(x, dim=self.dim)
