# operator: Softmax
# kind: result_cache
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Knows the few contents that timed slots have until they are drawn anew, by eight bytes, and
# remembers their results across turns.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim, self.kept = dim, {}

    def forward(self, x):
        if not x.untyped_storage().resizable():
            return torch.softmax(x, dim=self.dim)
        kept = self.kept.get(id(x))
        if kept is not None and kept[0] == x._version:
            return kept[2]
        mark = bytes(x.untyped_storage()[:8])
        if kept is None or kept[1] != mark:
            kept = (x._version, mark, torch.softmax(x, dim=self.dim))
        self.kept[id(x)] = (x._version, *kept[1:])
        return kept[2]
