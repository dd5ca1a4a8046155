# operator: SiluAndMul
# kind: process
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Runs a program in every call.
import subprocess
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        subprocess.run([sys.executable, "-c", "pass"], check=False, capture_output=True)
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
