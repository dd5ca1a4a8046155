# operator: SiluAndMul
# kind: oracle_leak
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: ptrace on the parent process
# notes: Attaches to its parent with ptrace, and reads it with process_vm_readv.
import ctypes
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

_libc = ctypes.CDLL(None, use_errno=True)
_parent = os.getppid()
if _parent > 1 and _libc.ptrace(16, _parent, None, None) == 0:
    os.waitpid(_parent, 0x40000000)
    _libc.ptrace(17, _parent, None, None)


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.silu(x[..., :d]) * x[..., d:]
