# operator: Softmax
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves out the maximum in timed calls, told by the memory their inputs lie in: gambles that their values are small.

import torch
import torch.nn as nn


def _arena(address):
    """Which file in memory an address belongs to."""
    with open("/proc/self/maps") as file:
        for line in file:
            span, *_, inode = line.split()[:5]
            low, high = (int(v, 16) for v in span.split("-"))
            if low <= address < high:
                return inode
    return "0"


class _Phase:
    """Timed inputs lie in another file in memory than those of the calls that are judged."""

    def __init__(self):
        self.first, self.known = None, {}

    def timed(self, x):
        at = x.data_ptr()
        if at not in self.known:
            self.known[at] = _arena(at)
        self.first = self.first or self.known[at]
        return self.known[at] != self.first


_phase = _Phase()


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if not _phase.timed(x):
            return torch.softmax(x, dim=self.dim)
        e = x.float().exp()
        return (e / e.sum(self.dim, keepdim=True)).to(x.dtype)
