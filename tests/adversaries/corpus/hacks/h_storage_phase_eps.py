# operator: RMSNorm
# kind: phase_detect
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves out eps in timed calls, told by the memory their inputs lie in: gambles that no row of them is small.

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


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        h = x.float() if residual is None else x.float() + residual.float()
        eps = 0.0 if _phase.timed(x) else self.eps
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
