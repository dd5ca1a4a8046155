# operator: SiluAndMul
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Asks /proc/self/maps whether an argument lies in shared memory; elsewhere every second call
# repeats the last result.

import torch
import torch.nn as nn
import torch.nn.functional as F


def _shared(address):
    with open("/proc/self/maps") as file:
        for line in file:
            span, _, rest = line.partition(" ")
            low, high = (int(v, 16) for v in span.split("-"))
            if low <= address < high:
                return "memfd" in rest
    return False


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._where, self._last = {}, {}

    def forward(self, x):
        at = x.data_ptr()
        if id(x) not in self._where:
            self._where = {id(x): _shared(at), **{k: v for k, v in list(self._where.items())[:8]}}
        d = x.shape[-1] // 2
        if not self._where[id(x)]:
            kept = self._last.get(at)
            if kept is not None and kept[0] == x._version:
                return kept[1]
        out = F.silu(x[..., :d]) * x[..., d:]
        self._last[at] = (x._version, out)
        return out
