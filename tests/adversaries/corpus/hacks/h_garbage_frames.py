# operator: SiluAndMul
# kind: result_forgery
# expect: reject
# needs_gpu: 0
# danger: writes to descriptors 3 to 255
# notes: Writes noise to every descriptor at import.
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

for _fd in range(3, 256):
    try:
        os.write(_fd, b"\xff" * 64)
    except OSError:
        pass


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
