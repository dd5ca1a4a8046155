"""A baseline in the candidate's place: confined and measured exactly like one, so that its ratio shows the machine's
own error. ``plant`` makes it slower by a known share, to show that the timing sees it.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from fk_core.child.baselines.base import provider
from fk_core.child.calls import init_defaults
from fk_core.child.capturing import Forward
from fk_core.child.loading import describe
from fk_core.child.module import FunctionModule
from fk_core.child.planted import PlantedGroup
from fk_core.child.runner import QUICK, Runner
from fk_core.child.wire import Channel, Closed


def main(channel: Channel, config: dict[str, Any]) -> None:
    """``config``: ``task`` name, ``provider``, ``device``, ``scratch``, ``spin_s``; ``init``: the entries' init
    parameters; ``plant``: slow it down by about 3%.
    """
    torch.set_num_threads(1)
    device = torch.device(config["device"])
    source = provider(config["provider"])
    planted = PlantedGroup()

    def build(
        entry: str, init: dict[str, Any], state: dict[str, Tensor], dtype: torch.dtype, where: torch.device
    ) -> Forward:
        full = {**init_defaults(config["init"][entry]), **init}
        forward = source.build(config["task"], entry, full, state, dtype, where)
        return FunctionModule(planted(forward) if config.get("plant") else forward, state)

    runner = Runner(device, build)
    while True:
        try:
            frame = channel.receive()
        except Closed:
            os._exit(0)
        body = frame.body
        channel.spin_s = config["spin_s"] if body["do"] in QUICK else 0.0
        try:
            if body["do"] in ("load", "checkpoint"):
                answer: dict[str, Any] = {"findings": []}
            elif body["do"] == "context":
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                    torch.zeros(1, device=device)
                answer = {}
            elif body["do"] == "bye":
                channel.reply(frame, {})
                os._exit(0)
            else:
                answer = runner.handle(body, frame.fds)
        except BaseException as error:  # noqa: BLE001 - reported to the parent, which blames the harness
            channel.reply(frame, {"exception": describe(error, config.get("scratch", "/nonexistent"))}, error=True)
            continue
        channel.reply(frame, answer)
