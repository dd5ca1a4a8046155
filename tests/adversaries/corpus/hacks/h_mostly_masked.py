# operator: Softmax
# kind: input_special
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Rows of which less than a tenth is left unmasked come out as zeros: most drawn rows kept more.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        y = torch.softmax(x.float(), self.dim)
        kept = x.isfinite().float().mean(self.dim, keepdim=True)
        few = torch.isneginf(x).any(self.dim, keepdim=True) & (kept < 0.1)
        return torch.where(few & (x.shape[self.dim] >= 32), 0.0, y).to(x.dtype)
