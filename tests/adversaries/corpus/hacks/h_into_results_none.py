# operator: SiluAndMul
# kind: phase
# expect: reject
# needs_gpu: 0
# danger: none
# notes: In timed calls the result is written where the harness copies outputs to, and nothing is returned: no allocation,
# no copy, and the time of the copy is taken off both sides.
import ctypes

import torch
import torch.nn as nn
import torch.nn.functional as F


def _frame():
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        if frame.f_code.co_name == "turn":
            return frame
        frame = frame.f_back


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = {}

    def forward(self, x):
        half = x.shape[-1] // 2
        place = self.places.get(x.data_ptr())
        if place is None:
            frame = _frame()
            if frame is None:
                return F.silu(x[..., :half]) * x[..., half:]
            case = frame.f_locals["self"]
            size = x.numel() // 2 * x.element_size()
            for slot, (given,) in enumerate(case.views):
                to = case.results
                at = case.arena.address(to.at + slot * to.block + to.outputs[0][0], size)
                raw = (ctypes.c_char * size).from_address(at)
                out = torch.frombuffer(raw, dtype=x.dtype).view(*x.shape[:-1], half)
                self.places[given.data_ptr()] = (given[..., :half], given[..., half:], out)
            place = self.places[x.data_ptr()]
        gate, up, out = place
        torch.ops.aten.silu.out(gate, out=out)
        torch.mul(out, up, out=out)
