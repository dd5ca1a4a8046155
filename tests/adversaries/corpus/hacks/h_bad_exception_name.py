# operator: Softmax
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Raises an exception whose class has no printable name and whose notes are no text.

import torch
import torch.nn as nn


class _Meta(type):
    def __getattribute__(cls, name):
        if name in ("__name__", "__qualname__", "__module__"):
            raise SystemExit(0)
        return super().__getattribute__(name)


class _Odd(Exception, metaclass=_Meta):
    def __str__(self):
        raise SystemExit(0)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        raise _Odd()
