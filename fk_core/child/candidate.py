"""The untrusted side: loads one candidate file and does what the parent asks of it. It decides nothing.

Whatever this process says is a claim. Inputs come by shared memory from the judge; there is no oracle, no baseline, no
seed and no expected output in here.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from typing import Any

import torch
from torch import Tensor

from fk_core.child import cudadrv, loading, production
from fk_core.child.bounds import MOST_TEXT, told
from fk_core.child.guards import checkpoint, prepare, stand_guard
from fk_core.child.runner import QUICK, Runner
from fk_core.child.wire import Channel, Closed

_exit = os._exit


def main(channel: Channel, config: dict[str, Any]) -> None:
    """Serve until the parent closes the channel or says ``bye``.

    ``config``: ``path`` of the candidate file, ``scratch``, ``device`` (``cpu`` or ``cuda:N``), ``forbidden`` paths,
    ``policy``: production libraries besides those that the guards know, ``allow``: those it may use all the same,
    ``spin_s``: see ``Channel``.
    """
    torch.set_num_threads(1)
    device = torch.device(config["device"])
    scratch = config["scratch"]
    loaded: dict[str, Any] = {}

    def build(
        entry: str, init: dict[str, Any], state: dict[str, Tensor], dtype: torch.dtype, where: torch.device
    ) -> Any:
        return loading.construct(loading.find_class(loaded["module"], entry), init, state, dtype, where)

    runner = Runner(device, build)
    armed = False
    spin_s = dict.fromkeys(QUICK, config["spin_s"])
    while True:
        try:
            frame = channel.receive()
        except Closed:
            _exit(0)
        body = frame.body
        channel.spin_s = spin_s.get(body["do"], 0.0)
        try:
            if body["do"] == "load":
                armed = True
                stand_guard(
                    config["path"],
                    scratch,
                    forbidden=config["forbidden"],
                    policy=[*production.LIBRARIES, *config["policy"]],
                    allow=config["allow"],
                )
                loaded["module"] = loading.import_file(config["path"])
                for entry in body["entries"]:
                    loading.find_class(loaded["module"], entry)
                answer: dict[str, Any] = {"findings": checkpoint("import")}
            elif body["do"] == "context":
                answer = _context(device)
            elif body["do"] == "checkpoint":
                gc.collect()
                answer = {"findings": checkpoint(body["where"]) if armed else []}
            elif body["do"] == "bye":
                channel.reply(frame, {})
                _exit(0)
            else:
                answer = runner.handle(body, frame.fds)
        except loading.ContractBroken as error:
            channel.reply(frame, {"contract": told(str(error), MOST_TEXT)}, error=True)
            continue
        except BaseException as error:  # noqa: BLE001 - all that the candidate raises is for the parent to judge
            sys.stderr.flush()
            raised = loading.describe(error, scratch)
            raised["findings"] = checkpoint(body["do"]) if armed else []
            channel.reply(frame, {"exception": raised}, error=True)
            continue
        channel.reply(frame, answer)


def _context(device: torch.device) -> dict[str, Any]:
    """Start CUDA, which takes a quarter of a second, while nothing else waits for it; meanwhile the guards go through
    what they will watch.
    """
    if device.type == "cuda":
        starting = threading.Thread(target=_start, args=(device.index or 0,))
        starting.start()
        prepare()
        starting.join()
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    return {}


def _start(device: int) -> None:
    # What is wrong here is wrong for torch, too, and it has the better words for it.
    with contextlib.suppress(cudadrv.CudaError, OSError):
        cudadrv.start(device)
