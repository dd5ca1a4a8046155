# operator: Softmax
# kind: honest_introspection
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Looks at a frame for its logger's name and counts objects once: odd, and harmless.
import gc
import sys

import torch
import torch.nn as nn

_caller = sys._getframe().f_code.co_name
_objects = len(gc.get_objects())


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
