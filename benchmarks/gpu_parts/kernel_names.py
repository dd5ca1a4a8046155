"""Which kernels a baseline provider launches, by the profiler; prints one JSON object, by task and form.

python -m benchmarks.gpu_parts.kernel_names PROVIDER TASK...
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from fk_core.child.baselines.base import provider

HIDDEN = 4096


def names(which: str, task: str) -> dict[str, list[str]]:
    """Form -> names of what ran on the device; on a CPU, of what torch was asked for."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(64, HIDDEN, device=device, dtype=torch.bfloat16)
    forms: dict[str, tuple[Any, ...]] = {"plain": (x,)}
    entry, init, state = {"rms_norm": "RMSNorm", "silu_and_mul": "SiluAndMul", "softmax": "Softmax"}[task], {}, {}
    if task == "rms_norm":
        init, state = {"hidden_size": HIDDEN, "eps": 1e-6}, {"weight": torch.ones_like(x[0])}
        forms["residual"] = (x.clone(), torch.randn_like(x))
    if task == "softmax":
        init = {"dim": -1}
    forward = provider(which).build(task, entry, init, state, x.dtype, torch.device(device))
    found = {}
    with torch.no_grad():
        for form, inputs in forms.items():
            forward(*inputs)
            found[form] = _launched(lambda given=inputs: forward(*given), device)
    return found


def _launched(call: Any, device: str) -> list[str]:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as seen:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
    where = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    return sorted({event.name for event in seen.events() or [] if event.device_type == where})


if __name__ == "__main__":
    print(json.dumps({task: names(sys.argv[1], task) for task in sys.argv[2:]}))
