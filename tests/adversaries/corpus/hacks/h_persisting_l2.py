# operator: SiluAndMul
# kind: l2_persistence
# expect: reject_or_no_gain
# needs_gpu: 1
# danger: none
# notes: Sets aside L2 for persisting lines and marks its input as persisting on the current stream.
import ctypes

import torch
import torch.nn as nn
import torch.nn.functional as F


class _Window(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("ratio", ctypes.c_float),
                ("hit", ctypes.c_int), ("miss", ctypes.c_int), ("pad", ctypes.c_byte * 64)]


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuCtxSetLimit(6, ctypes.c_size_t(32 << 20))
        size = min(x.numel() * x.element_size(), 32 << 20)
        window = _Window(x.data_ptr(), size, 1.0, 2, 1)
        cuda.cuStreamSetAttribute(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), 1, ctypes.byref(window))
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
