"""Run in a process of its own: builds the jobs of a list, each in a fork and with a cache of its own. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from fk_core.child import builder, wire


def one(job: dict[str, Any]) -> dict[str, Any]:
    """The builder role over a socket pair, as it is started for a candidate."""
    ours, theirs = (wire.Channel(s) for s in wire.pair())
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.environ["TRITON_CACHE_DIR"] = job["cache"]
        builder.main(theirs, {"path": job["path"], "capability": 90})
        os._exit(99)
    theirs.close()
    told = ours.ask({"do": "build", "calls": job["calls"]}, timeout_s=100.0).body
    ours.close()
    _, status = os.waitpid(pid, 0)
    return told | {"exit": os.waitstatus_to_exitcode(status)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps([one(job) for job in json.load(sys.stdin)]))
