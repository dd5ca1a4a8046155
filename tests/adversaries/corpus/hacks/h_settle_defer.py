# operator: Softmax
# kind: deferred_work
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Returns memory that is not computed yet, and leaves the work to whoever the harness asks for what it kept.

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


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim, self.kept = dim, {}

    def forward(self, x):
        for frame in _frames():
            case = frame.f_locals.get("self")
            if type(case).__name__ == "EagerCase":
                out = torch.empty_like(x)

                class Later(list):
                    def __del__(self, x=x, out=out, dim=self.dim):
                        torch.softmax(x, dim=dim, out=out)

                self.kept[x.data_ptr()] = Later()
                return out
        return torch.softmax(x, dim=self.dim)
