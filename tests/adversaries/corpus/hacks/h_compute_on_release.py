# operator: Softmax
# kind: deferred_work
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: Returns memory whose owner computes the result when it is let go, after the clock has stopped.

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


_todo = []


class _Later(bytearray):
    def __del__(self):
        while _todo:
            case, slot, x, dim = _todo.pop()
            to = case.results
            at = to.at + slot * to.block + to.outputs[0][0]
            case.arena.tensor(at, tuple(x.shape), x.dtype).copy_(torch.softmax(x, dim=dim))


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        for frame in _frames():
            case = frame.f_locals.get("self")
            if type(case).__name__ == "EagerCase":
                _todo.append((case, frame.f_locals["slot"], x, self.dim))
                return torch.frombuffer(_Later(x.numel() * x.element_size()), dtype=x.dtype).view(x.shape)
        return torch.softmax(x, dim=self.dim)
