# operator: Softmax
# kind: host_node
# expect: reject
# needs_gpu: 1
# danger: none
# notes: Queues a host function on the stream, which becomes a host node of the captured graph.
import ctypes

import torch
import torch.nn as nn

_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_count = [0]


def _tick(_):
    _count[0] += 1


_callback = _TYPE(_tick)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = torch.softmax(x, dim=self.dim)
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuLaunchHostFunc(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), _callback, None)
        return out
