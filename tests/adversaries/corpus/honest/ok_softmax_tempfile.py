# operator: Softmax
# kind: honest_tempfile
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Uses a temporary folder at import and removes it.
import os
import shutil
import tempfile

import torch
import torch.nn as nn

with tempfile.TemporaryDirectory() as _folder:
    with open(os.path.join(_folder, "table.txt"), "w") as _f:
        _f.write("8 16 32")
    os.rename(os.path.join(_folder, "table.txt"), os.path.join(_folder, "done.txt"))
    os.makedirs(os.path.join(_folder, "a", "b"))
_other = tempfile.mkdtemp()
shutil.rmtree(_other)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
