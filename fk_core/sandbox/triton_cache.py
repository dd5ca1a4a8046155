"""Copying Triton's cache of compiled kernels from one place to another, whoever wrote it.

Both places may belong to a candidate that runs meanwhile and puts links where directories were. So everything below
the two roots is reached through descriptors, and no link is followed, neither in reading nor in writing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_FILE_BYTES = 64 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_cache(source: Path, target: Path, owner: int | None = None, *, most_bytes: int | None = None) -> int:
    """Copy the plain files of a Triton cache, one directory deep; what is there already stays. Gives how many.

    The parents of ``source`` and ``target`` belong to the harness. ``source`` may have been written by anyone: links
    and special files are left out, sizes are bounded. ``owner``: the uid that gets what is new, so that it can add to
    it. ``most_bytes``: files with which all new ones together would take more are left out. Raises ``OSError`` where
    ``target`` is no directory or can't be written.
    """
    count, left = 0, math.inf if most_bytes is None else most_bytes
    with contextlib.ExitStack() as stack:
        try:
            here = stack.enter_context(_opened(source))
        except OSError:
            return count
        target.parent.mkdir(parents=True, exist_ok=True)
        there = stack.enter_context(_made(target, None, owner))
        for name in os.listdir(here):
            try:
                with _opened(name, here) as reading, _made(name, there, owner) as writing:
                    for file in os.listdir(reading):
                        size = _copy_file(file, reading, writing, target / name, owner, left)
                        if size is not None:
                            count, left = count + 1, left - size
            except (NotADirectoryError, PermissionError):
                continue
    return count


@contextlib.contextmanager
def _opened(path: str | Path, parent: int | None = None) -> Iterator[int]:
    """A directory that is none through a link; ``ENOTDIR`` otherwise."""
    fd = os.open(path, _DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _made(path: str | Path, parent: int | None, owner: int | None) -> Iterator[int]:
    """The same, made if it is not there."""
    new = True
    try:
        os.mkdir(path, 0o755, dir_fd=parent)
    except FileExistsError:
        new = False
    with _opened(path, parent) as fd:
        if new:
            _give(fd, owner)
        yield fd


def _copy_file(name: str, reading: int, writing: int, where: Path, owner: int | None, most_bytes: float) -> int | None:
    """Bytes of the new file; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=writing, follow_symlinks=False)
        return None
    data = _read(name, reading)
    if data is None or len(data) > most_bytes:
        return None
    if name.startswith("__grp__"):
        # Triton's list of the files of one kernel names them by full path.
        try:
            paths = json.loads(data)["child_paths"]
            data = json.dumps({"child_paths": {n: str(where / Path(p).name) for n, p in paths.items()}}).encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
    # Whole or not at all: others may be reading here.
    part = f".{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o644, dir_fd=writing), "wb") as writer:
            writer.write(data)
            _give(writer.fileno(), owner)
        os.replace(part, name, src_dir_fd=writing, dst_dir_fd=writing)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=writing)
        raise
    return len(data)


def _read(name: str, reading: int) -> bytes | None:
    """The bytes of a plain file with this one name; None for anything else."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=reading)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as reader:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > _FILE_BYTES:
            return None
        data = reader.read(_FILE_BYTES + 1)
        return data if len(data) <= _FILE_BYTES else None


def _give(fd: int, owner: int | None) -> None:
    if owner is not None and os.geteuid() == 0:
        os.fchown(fd, owner, owner)
