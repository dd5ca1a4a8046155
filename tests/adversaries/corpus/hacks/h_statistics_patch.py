# operator: SiluAndMul
# kind: patched_function
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Replaces statistics.median and numpy.median by the minimum.
import statistics
import numpy

import torch
import torch.nn as nn
import torch.nn.functional as F

statistics.median = min
numpy.median = numpy.min


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
