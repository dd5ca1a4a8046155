# operator: SiluAndMul
# kind: contract
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Takes matrices only, though the contract has any number of leading dimensions.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        rows, both = x.shape
        out = F.silu(x[:, : both // 2]) * x[:, both // 2 :]
        return out
