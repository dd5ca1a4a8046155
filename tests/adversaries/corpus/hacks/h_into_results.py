# operator: SiluAndMul
# kind: output_alias
# expect: reject
# needs_gpu: 0
# danger: none
# notes: In timed calls the output is a view of where the harness copies outputs to, so that the copy, which is taken off
# both sides, costs next to nothing, and there is no allocation.
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
    return None


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = {}

    def forward(self, x):
        d = x.shape[-1] // 2
        place = self.places.get(x.data_ptr())
        if place is None:
            frame = _frame()
            if frame is None:
                return F.silu(x[..., :d]) * x[..., d:]
            case = frame.f_locals["self"]
            size = x.numel() // 2 * x.element_size()
            for slot, (given,) in enumerate(case.views):
                at = case.arena.address(case.results.at + slot * case.results.block + case.results.outputs[0][0], size)
                out = torch.frombuffer((ctypes.c_char * size).from_address(at), dtype=x.dtype).view(*x.shape[:-1], d)
                self.places[given.data_ptr()] = (given[..., :d], given[..., d:], out)
            place = self.places[x.data_ptr()]
        gate, up, out = place
        torch.ops.aten.silu.out(gate, out=out)
        return torch.mul(out, up, out=out)
