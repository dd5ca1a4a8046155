# operator: Softmax
# kind: result_forgery
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Answers a call with shapes of thousands of digits.

import time

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
            seen = frame.f_locals
            channel, request = seen.get("channel"), seen.get("frame")
            if channel is not None and request is not None:
                told = {"shape": [10**4000] * 16, "dtype": "d" * 4000, "device": "cpu", "copied": True}
                channel.reply(request, {"returned": 1, "outputs": [told], "aliases": [], "earlier": []})
                time.sleep(30)
        return torch.softmax(x, dim=self.dim)
