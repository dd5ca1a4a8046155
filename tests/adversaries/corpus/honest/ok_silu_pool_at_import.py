# operator: SiluAndMul
# kind: honest_thread_at_import
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Prepares something in a thread pool at import and shuts it down before the import ends.
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

with ThreadPoolExecutor(2) as _pool:
    _sizes = list(_pool.map(lambda n: 1 << n, range(8)))


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
