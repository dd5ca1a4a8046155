# operator: Softmax
# kind: timer_tamper
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Takes the place of what receives requests, answers those for timed turns itself, all slots in one call, and steps
# aside for every other request.

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
            while f.f_code.co_name != "main":
                if f.f_code.co_name == "handle":
                    _runner[:] = [f.f_locals["self"]]
                f = f.f_back
            kind = type(f.f_locals["channel"])
            if kind.receive is not _receive:
                _old[:] = [kind.receive]
                kind.receive = _receive
        return torch.softmax(x, dim=self.dim)


_known, _old, _runner = {}, [], []


def _receive(channel):
    kind = type(channel)
    while True:
        frame = _old[0](channel)
        body = frame.body
        if body["do"] != "loop" or len(body["order"]) < 20 or len(set(body["order"])) < len(body["order"]):
            if body["do"] not in ("held",):
                kind.receive = _old[0]
            return frame
        made = _quick(_runner[0].eager[body["case"]], body["order"])
        channel.reply(frame, {"made": made})


def _quick(case, order):
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
