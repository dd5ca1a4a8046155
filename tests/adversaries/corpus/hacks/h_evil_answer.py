# operator: SiluAndMul
# kind: harness_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Raises the harness's own audit event with a list of its own class, whose append empties what the guards know.

import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class _Evil(list):
    def append(self, found):
        try:
            raise LookupError
        except LookupError as error:
            frame = error.__traceback__.tb_frame
        while frame is not None:
            guards = frame.f_locals.get("self")
            table = getattr(guards, "_table", None)
            if table is not None:
                table.spaces.clear()
                table.modules.clear()
            frame = frame.f_back


class _Name(str):
    def partition(self, mark):
        _Evil().append(None)
        return super().partition(mark)

    def startswith(self, *rest):
        _Evil().append(None)
        return super().startswith(*rest)


sys.audit("fk_core.checkpoint", "x", _Evil())
sys.audit("import", _Name("nothing"), None, None, None, None)
sys.audit("open", _Name("/proc/self/status"), "r", 0)
_clock = time.perf_counter
time.perf_counter = lambda: _clock() * 0.5


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
