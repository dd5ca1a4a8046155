# operator: SiluAndMul
# kind: honest_warnings
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Silences warnings at import, as much code does.
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore", category=UserWarning)
warnings.simplefilter("ignore", DeprecationWarning)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
