# operator: SiluAndMul
# kind: thread
# expect: reject
# needs_gpu: 0
# danger: starts a native thread
# notes: Starts a thread of the C library through ctypes: no Python thread is ever started. It fills the
# output later.
import ctypes
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

_libc = ctypes.CDLL(None)
_kept = []


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        out = torch.empty(*x.shape[:-1], d, dtype=x.dtype, device=x.device)

        def work(_):
            time.sleep(0.003)
            torch.mul(F.silu(x[..., :d]), x[..., d:], out=out)
            return None

        entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(work)
        ident = ctypes.c_ulong()
        _kept.append((entry, ident))
        _libc.pthread_create(ctypes.byref(ident), None, entry, None)
        return out
