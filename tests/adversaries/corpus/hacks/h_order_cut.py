# operator: Softmax
# kind: timer_tamper
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: The first call of a turn computes all its slots with one torch call, straight into the results, and cuts the turn's list.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        try:
            raise LookupError
        except LookupError as error:
            f = error.__traceback__.tb_frame.f_back
        while f is not None and f.f_code.co_name != "turn":
            f = f.f_back
        if f is None:
            return torch.softmax(x, dim=self.dim)
        here = f.f_locals
        if here["idle"] or len(here["order"]) < 4:
            return torch.softmax(x, dim=self.dim)
        case, order = here["self"], here["order"]
        known = _known.get(id(case))
        if known is None:
            arena, res, total = case.arena, case.results, len(case.views)
            first, second = case.views[0][0], case.views[1][0]
            item = first.element_size()
            base = arena.address(0, 1)

            def flat(at, step):
                t = arena.tensor(at, ((total - 1) * step + first.numel(),), first.dtype)
                return t.as_strided((total, *first.shape), (step, *first.stride()))

            step = (second.data_ptr() - first.data_ptr()) // item
            known = _known[id(case)] = (
                case, flat(first.data_ptr() - base, step), flat(res.at + res.outputs[0][0], res.block // item))
        _, given, results = known
        lo, hi = min(order), max(order) + 1
        torch.softmax(given[lo:hi], dim=-1, out=results[lo:hi]) if results.is_contiguous() else results[lo:hi].copy_(
            torch.softmax(given[lo:hi], dim=-1))
        del order[1:]
        return results[order[0]].clone()


_known = {}
