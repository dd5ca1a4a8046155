"""A role for tests: runs the code it is sent and answers with what that code left in ``out``."""

from __future__ import annotations

import traceback
from typing import Any

from fk_core.child.wire import Channel


def main(channel: Channel, config: dict[str, Any]) -> None:
    space: dict[str, Any] = {"config": config}
    while True:
        frame = channel.receive()
        if frame.body.get("do") == "stop":
            channel.reply(frame, {})
            return
        space["out"] = None
        space["fds"] = frame.fds
        try:
            exec(frame.body["code"], space)
            channel.reply(frame, {"out": space["out"]})
        except Exception as error:  # noqa: BLE001 - whatever the code raised is the answer
            channel.reply(
                frame, {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}, error=True
            )
