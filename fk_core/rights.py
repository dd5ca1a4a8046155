"""Rights of what this process makes on disk, which must not depend on the umask that it was started with."""

from __future__ import annotations

import os
from pathlib import Path

from fk_core.errors import HarnessError

_OWNER = 0o700


def keep_own() -> None:
    """Have a umask take nothing from the owner. For the start of a program: it holds for all threads."""
    os.umask(os.umask(0o077) & ~_OWNER)


def check_own() -> None:
    """Raise ``HarnessError`` under a umask with which this process could not use what it makes."""
    umask = _umask()
    if umask & _OWNER:
        raise HarnessError(
            f"the umask {umask:04o} takes from the owner the rights to what is made here",
            hint="Set one such as 0022 or 0077 (in Python os.umask(0o077)) and start again",
        )


def directory(path: Path, mode: int = 0o755) -> None:
    """Make a directory with this very mode where there is none; its parents as the umask says."""
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError:
        return
    path.chmod(mode)


def _umask() -> int:
    """Without setting it, as ``os.umask`` would for a moment in every thread; 0 where the kernel does not tell."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as lines:
            return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0)
    except OSError:
        return 0
