"""Copying Triton's cache of compiled kernels from one place to another, whoever wrote it."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

_FILE_BYTES = 64 << 20


def copy_cache(source: Path, target: Path, owner: int | None = None) -> int:
    """Copy the plain files of a Triton cache, one directory deep; what is there already stays. Gives how many.

    ``source`` may have been written by anyone: links and special files are left out, sizes are bounded. ``owner``: the
    uid that gets what is new, so that it can add to it.
    """
    count = 0
    if source.is_symlink() or not source.is_dir():
        return count
    for folder in source.iterdir():
        if folder.is_symlink() or not folder.is_dir():
            continue
        there = target / folder.name
        there.mkdir(parents=True, exist_ok=True)
        _give(there, owner)
        for file in folder.iterdir():
            if not (there / file.name).exists():
                count += _copy_file(file, there / file.name, owner)
    return count


def _copy_file(source: Path, target: Path, owner: int | None) -> int:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    with os.fdopen(fd, "rb") as reader:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _FILE_BYTES:
            return 0
        data = reader.read(_FILE_BYTES + 1)
    if source.name.startswith("__grp__"):
        # Triton's list of the files of one kernel names them by full path.
        try:
            paths = json.loads(data)["child_paths"]
            data = json.dumps(
                {"child_paths": {n: str(target.parent / Path(p).name) for n, p in paths.items()}}
            ).encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            return 0
    # Whole or not at all: others may be reading here.
    part = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    part.write_bytes(data)
    part.chmod(0o644)
    _give(part, owner)
    part.replace(target)
    return 1


def _give(path: Path, owner: int | None) -> None:
    if owner is not None and os.geteuid() == 0:
        os.chown(path, owner, owner, follow_symlinks=False)
