# operator: Softmax
# kind: trace_hook
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Installs a profile function that watches every call of the process and could rewrite its lists.
import sys

import torch
import torch.nn as nn

_seen = []


def _watch(frame, event, arg):
    if event == "return" and isinstance(arg, float):
        _seen.append(arg)


sys.setprofile(_watch)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
