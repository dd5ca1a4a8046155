# operator: Softmax
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Remembers the result on the input tensor object itself and trusts it while the tensor's
# version and one element stand: every timed slot is one object that is called over and over,
# correctness calls never are.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        mark = (x._version, float(x.view(-1)[0]))
        kept = x.__dict__.get("_kept")
        if kept is None or kept[0] != mark:
            kept = x._kept = (mark, torch.softmax(x, dim=self.dim))
        return kept[1]
