"""Run in a process of its own: which programs Triton starts, before and after the zygote's warming. Prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

started: list[str] = []
_Popen = subprocess.Popen


class Noted(_Popen):  # type: ignore[type-arg]
    def __init__(self, args: Any, *rest: Any, **more: Any) -> None:
        started.append(" ".join([os.path.basename(args[0]), *args[1:2]]))
        super().__init__(args, *rest, **more)


def taken() -> list[str]:
    found = list(started)
    started.clear()
    return found


if __name__ == "__main__":
    subprocess.Popen = Noted  # type: ignore[misc]
    from triton.runtime import build

    from fk_core.child import builder, warm_compile

    told = {}
    warm_compile.compile_one(90)
    told["compile_one"] = taken()
    warm_compile.ask_tools()
    told["ask_tools"] = taken()
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
        builder.triton.runtime.driver.set_active(builder.DryDriver(90))
        warm_compile._scale_rows[(1,)](*[builder.torch.empty(8) for _ in range(3)], 8, 1.0, True, 8)
        build.platform_key()
        os.write(write, json.dumps(taken()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as reader:
        told["fork"] = json.load(reader)
    os.wait()
    sys.stdout.write(json.dumps(told))
