# operator: SiluAndMul
# kind: process
# expect: reject
# needs_gpu: 0
# danger: forks a process that ends after 60 s
# notes: Forks through the C library, which raises no audit event; the child sleeps.
import ctypes
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

_libc = ctypes.CDLL(None)
if _libc.fork() == 0:
    time.sleep(60)
    os._exit(0)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
