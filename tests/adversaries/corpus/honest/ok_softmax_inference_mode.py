# operator: Softmax
# kind: honest_inference_mode
# expect: accept
# needs_gpu: 0
# danger: none
# notes: Computes under inference mode: its output is an inference tensor.

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        with torch.inference_mode():
            return torch.softmax(x, dim=self.dim)
