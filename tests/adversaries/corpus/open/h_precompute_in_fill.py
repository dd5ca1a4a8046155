# operator: SiluAndMul
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Computes the results of all timed slots while they are filled with new values, which no
# clock sees, through a function on the harness's instance.

import torch
import torch.nn as nn
import torch.nn.functional as F


def _frames():
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        yield frame
        frame = frame.f_back


_ready = {}


def _silu(x):
    d = x.shape[-1] // 2
    return F.silu(x[..., :d]) * x[..., d:]


def _take_over():
    for frame in _frames():
        runner = frame.f_locals.get("self")
        if type(runner).__name__ == "Runner":
            fill = runner.do_fill

            def filled(body, fds, fill=fill, runner=runner):
                answer = fill(body, fds)
                for slot in runner.slots[body["case"]]:
                    _ready[slot["x"].data_ptr()] = _silu(slot["x"])
                return answer

            runner.do_fill = filled
            return True
    return False


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self.done = False

    def forward(self, x):
        self.done = self.done or _take_over()
        if x.untyped_storage().resizable():
            ready = _ready.get(x.data_ptr())
            if ready is not None:
                return ready
        return _silu(x)
