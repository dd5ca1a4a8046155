"""Builds Triton's launchers for signatures that builders met. Trusted: it runs Triton's own code and a C compiler.

A signature is a list of type names that the harness has checked (``fk_core.launcher_stock``). The C source that Triton
before 3.7 makes of it depends on these names alone: its ``make_launcher`` does not use the constants, and looks at
``tensordesc_meta`` only for tensor descriptors, which are not among them. So the cache's key, a hash of the source, is
the one that the candidate's own process computes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fk_core.child.triton_version import LAUNCHER
from fk_core.child.wire import Channel, Closed


def main(channel: Channel, config: dict[str, Any]) -> None:
    """Answer ``build`` with the ``name`` of the launcher's directory in the Triton cache, or with why it ``failed``.

    The cache is that of the environment; what it has already is not built again. ``config`` is not used.
    """
    del config
    while True:
        try:
            frame = channel.receive()
        except Closed:
            os._exit(0)
        try:
            channel.reply(frame, {"name": build(frame.body["signature"]), "failed": ""})
        except Exception as error:  # noqa: BLE001 - a launcher less costs time only
            channel.reply(frame, {"name": "", "failed": f"{type(error).__name__}: {error}"[:300]})


def build(signature: list[str]) -> str:
    """Build one as Triton's ``CudaLauncher`` does; raises whatever Triton and the compiler raise."""
    from triton.backends.nvidia import driver

    module = driver.compile_module_from_src(
        src=driver.make_launcher({}, dict(enumerate(signature)), None),
        name=LAUNCHER,
        library_dirs=driver.library_dirs(),
        include_dirs=driver.include_dirs,
        libraries=driver.libraries,
    )
    return Path(module.__file__).parent.name
