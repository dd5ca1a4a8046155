# operator: Softmax
# kind: hang
# expect: reject
# needs_gpu: 0
# danger: none
# notes: Ignores every signal it can and sleeps.
import signal
import time

import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(100000)
