# operator: SiluAndMul
# kind: fs_tamper
# expect: reject
# needs_gpu: 0
# danger: appends a comment to files of installed packages
# notes: Writes into the folders of installed packages and their caches.
import glob
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

for _name in [F.__file__, *glob.glob(os.path.join(os.path.dirname(torch.__file__), "..", "*.pth"))]:
    try:
        with open(_name, "a") as _f:
            _f.write("\n# touched\n")
    except OSError:
        pass


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
