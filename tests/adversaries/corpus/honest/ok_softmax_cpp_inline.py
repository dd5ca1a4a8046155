# operator: Softmax
# kind: honest_cpp_inline
# expect: accept
# needs_gpu: 0
# danger: none
# notes: C++ through load_inline for contiguous fp32 on the CPU; everything else in PyTorch.

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

_SRC = r"""
#include <torch/extension.h>
#include <cmath>
torch::Tensor rows_softmax(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
  const float* p = x.data_ptr<float>();
  float* q = y.data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r, p += n, q += n) {
    float m = p[0];
    for (int64_t i = 1; i < n; ++i) m = std::fmax(m, p[i]);
    double s = 0;
    for (int64_t i = 0; i < n; ++i) { q[i] = std::exp(p[i] - m); s += q[i]; }
    for (int64_t i = 0; i < n; ++i) q[i] = static_cast<float>(q[i] / s);
  }
  return y;
}
"""
_ext = load_inline("rows_softmax_ext", cpp_sources=_SRC, functions=["rows_softmax"], extra_cflags=["-O2"])


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        last = self.dim % x.dim() == x.dim() - 1
        if last and x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() and bool(x.isfinite().all()):
            return _ext.rows_softmax(x)
        return torch.softmax(x, dim=self.dim)
