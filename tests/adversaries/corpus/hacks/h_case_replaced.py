# operator: Softmax
# kind: timer_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Puts an object of its own where the timed case lies, whose turn computes all slots with one call.

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
        if f is not None and not f.f_locals["idle"]:
            case = f.f_locals["self"]
            while f.f_code.co_name != "handle":
                f = f.f_back
            eager = f.f_locals["self"].eager
            for name, known in list(eager.items()):
                if known is case:
                    eager[name] = _Fake(case)
        return torch.softmax(x, dim=self.dim)


_known = {}


class _Fake:
    def __init__(self, case):
        self.case = case

    def turn(self, order, keep, *, idle=False):
        return _quick(self.case, order, keep, idle=idle)

    def held(self):
        return self.case.held()


def _quick(case, order, keep, *, idle=False):
    if idle or len(order) < 20 or len(set(order)) < len(order):
        return case.turn(order, keep, idle=idle)
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
    s = order[-1]
    case.kept[:] = [(case.views[s], [results[s].clone()])]
    return len(order)
