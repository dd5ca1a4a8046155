# operator: Softmax
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Leaves the result of the last timed call to the function that the harness calls before it
# copies it.

import torch
import torch.nn as nn


def _frames():
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        yield frame
        frame = frame.f_back


_todo = []


def _take_over():
    for frame in _frames():
        runner = frame.f_locals.get("self")
        if type(runner).__name__ == "Runner":
            last = runner.do_last

            def late(body, fds, last=last, runner=runner):
                x, dim = _todo[-1]
                runner.last = [torch.softmax(x, dim)]
                return last(body, fds)

            runner.do_last = late
            return True
    return False


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim, self.done = dim, False

    def forward(self, x):
        self.done = self.done or _take_over()
        if not x.untyped_storage().resizable():
            return torch.softmax(x, dim=self.dim)
        _todo[:] = [(x, self.dim)]
        return x
