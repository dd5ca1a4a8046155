# operator: SiluAndMul
# kind: crash
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Aborts.
import os

import torch
import torch.nn as nn


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        os.abort()
