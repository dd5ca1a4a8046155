# operator: SiluAndMul
# kind: harness_kill
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: SIGTERM to its process group
# notes: Signals its process group and its session.
import os
import signal

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._n = 0

    def forward(self, x):
        self._n += 1
        if self._n == 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(os.getpgid(0), signal.SIGTERM)
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
