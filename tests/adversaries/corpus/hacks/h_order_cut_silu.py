# operator: SiluAndMul
# kind: timer_tamper
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: The first call of a turn writes the results of all its slots by hand and leaves one slot in the turn's list.

import torch
import torch.nn as nn
import torch.nn.functional as F


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        try:
            raise LookupError
        except LookupError as error:
            f = error.__traceback__.tb_frame
        while f is not None and f.f_code.co_name != "turn":
            f = f.f_back
        if f is None or f.f_locals["idle"] or len(f.f_locals["order"]) < 8:
            return F.silu(x[..., :d]).mul_(x[..., d:]) if x.dtype == torch.float32 else (F.silu(x[..., :d].float()) * x[..., d:]).to(x.dtype)
        case, order = f.f_locals["self"], f.f_locals["order"]
        arena, res = case.arena, case.results
        off, size = res.outputs[0]
        n = len(order)
        first = case.views[0][0]
        step = (case.views[1][0].data_ptr() - first.data_ptr()) // first.element_size()
        total = len(case.views)
        whole = torch.as_strided(_flat(arena, first, step, total), (total, *first.shape), (step, *first.stride()))
        y = F.silu(whole[..., :d].float()).mul_(whole[..., d:]).to(first.dtype)
        for slot in order:
            arena.tensor(res.at + slot * res.block + off, first.shape[:-1] + (d,), first.dtype).copy_(y[slot])
        keep = f.f_locals["keep"]
        del order[1:]
        return y[order[0]].clone()


def _flat(arena, first, step, total):
    at = first.data_ptr() - arena.address(0, 1)
    return arena.tensor(at, ((total - 1) * step + first.numel(),), first.dtype)
