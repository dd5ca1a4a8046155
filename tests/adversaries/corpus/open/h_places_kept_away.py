# operator: Softmax
# kind: timer_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: As h_no_places, but the harness is told so already in the warm calls before the turn.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim
        self.left = 0
        self.out = None

    def __call__(self, x):
        if self.left:
            self.left -= 1
            if self.left == 0:
                self.case.results = self.old
            return None
        try:
            raise LookupError
        except LookupError as error:
            f = error.__traceback__.tb_frame.f_back
        while f is not None and f.f_code.co_name != "turn":
            f = f.f_back
        y = torch.softmax(x, dim=self.dim)
        if f is None or f.f_locals["idle"]:
            return y
        case, order = f.f_locals["self"], f.f_locals["order"]
        if len(order) < 20 or len(set(order)) < len(order):
            if len(set(order)) < len(order) and case.results.outputs:
                _old[id(case)] = case, case.results
                case.results = type(case.results)(case.results.at, case.results.block, ())
            elif len(set(order)) == len(order) and not case.results.outputs:
                case.results = _old[id(case)][1]
            return y
        if case.results.outputs:
            return y
        known = _known.get(id(case))
        if known is None:
            arena, res, total = case.arena, _old[id(case)][1], len(case.views)
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
        self.case, self.old, self.left = case, _old[id(case)][1], len(order) - 1
        return y


_known, _old = {}, {}
