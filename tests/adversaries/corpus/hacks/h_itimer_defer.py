# operator: Softmax
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Fills the output from a signal handler, half a millisecond after returning.
import signal

import torch
import torch.nn as nn

_todo = []


def _tick(number, frame):
    while _todo:
        x, out, dim = _todo.pop(0)
        out.copy_(torch.softmax(x, dim=dim))


signal.signal(signal.SIGALRM, _tick)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = torch.empty_like(x)
        _todo.append((x, out, self.dim))
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        return out
