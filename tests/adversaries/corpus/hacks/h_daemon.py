# operator: Softmax
# kind: process
# expect: reject
# needs_gpu: 0
# danger: starts a process that ends after 120 s
# notes: Starts a helper in a session of its own, which would outlive the run.
import subprocess
import sys

import torch
import torch.nn as nn

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True,
                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x, dim=self.dim)
