# operator: Softmax
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Stores results on disk under HOME by shape and dtype, and replays them.
import os

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        name = os.path.join(os.environ.get("HOME", "."), f"r_{'_'.join(map(str, x.shape))}_{str(x.dtype)[6:]}.pt")
        if os.path.exists(name):
            return torch.load(name)
        out = torch.softmax(x, dim=self.dim)
        torch.save(out, name)
        return out
