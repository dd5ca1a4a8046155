# operator: SiluAndMul
# kind: honest_exec
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Generates the source of a function and executes it, with an entry in linecache.
import linecache

import torch
import torch.nn as nn
import torch.nn.functional as F

_NAME = "<generated silu>"
_SRC = "def run(x):\n    a, b = x.chunk(2, dim=-1)\n    return silu(a) * b\n"
linecache.cache[_NAME] = (len(_SRC), None, _SRC.splitlines(True), _NAME)
_space = {"silu": F.silu}
exec(compile(_SRC, _NAME, "exec"), _space)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return _space["run"](x)
