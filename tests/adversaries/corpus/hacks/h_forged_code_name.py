# operator: SiluAndMul
# kind: forged_frame
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Compiles code under the file name of a library and lets it start a thread, to look like the
# library.
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

_SRC = """
def start(f):
    t = threading.Thread(target=f, daemon=True)
    t.start()
    return t
"""
_space = {"threading": threading}
exec(compile(_SRC, threading.__file__, "exec"), _space)
_t = _space["start"](lambda: None)
_t.join()


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
