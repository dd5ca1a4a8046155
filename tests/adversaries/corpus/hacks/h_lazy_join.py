# operator: SiluAndMul
# kind: stream_escape
# expect: reject
# needs_gpu: 1
# danger: none
# notes: Works on a side stream and joins it only in the next call.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self._side = None

    def forward(self, x):
        d = x.shape[-1] // 2
        main = torch.cuda.current_stream()
        if self._side is None:
            self._side = torch.cuda.Stream()
        else:
            main.wait_stream(self._side)
        out = torch.empty(*x.shape[:-1], d, dtype=x.dtype, device=x.device)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            torch.mul(F.silu(x[..., :d]), x[..., d:], out=out)
        return out
