"""Directories that a candidate has filled: measured and removed whatever their depth, names and modes.

Their paths may be longer than the kernel takes and their depth more than Python's stack holds, so a walk here goes by
directory descriptors, one at a time: down by name, never through a link, and up by ``..``.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER = 0o700
_BATCH = 10_000
"""Entries that are listed at once: directories may be larger than what one wants to hold in memory."""
_REMOVE_S = 120.0
"""Ten million files take about as long; what is left then belongs to somebody who writes as fast as it is removed."""
_SIZE_S = 10.0
_TRIES = 5
"""A walk begins anew where somebody has moved a directory away from under it."""


class _Moved(Exception):
    """The parent of a directory is no longer the one that the walk came from."""


class _TooLong(Exception):
    """A walk was given up."""


@dataclass
class _Level:
    """A directory on the way from the root to where the walk is."""

    name: str
    mark: tuple[int, int]
    todo: list[str] = field(default_factory=list)
    """Directories in it that were listed and not yet entered."""
    stuck: set[str] = field(default_factory=set)
    """Entries that can't be removed."""


class _Walk:
    """Where a walk through a tree is. Raises ``OSError`` where its root can't be opened."""

    def __init__(self, root: Path, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s
        self.fd = _enter(os.fspath(root), None)
        self.levels = [_Level("", _mark(self.fd))]

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.fd)

    @property
    def here(self) -> _Level:
        return self.levels[-1]

    def down(self, name: str) -> None:
        fd = _enter(name, self.fd)
        os.close(self.fd)
        self.fd = fd
        self.levels.append(_Level(name, _mark(fd)))

    def up(self) -> _Level:
        """Go back to the parent; give the level that was left."""
        left = self.levels.pop()
        try:
            fd = os.open("..", _OPEN, dir_fd=self.fd)
        except OSError as error:
            raise _Moved from error
        os.close(self.fd)
        self.fd = fd
        if _mark(fd) != self.here.mark:
            raise _Moved
        return left

    def in_time(self) -> None:
        if time.monotonic() > self._end:
            raise _TooLong


def remove(path: Path) -> bool:
    """Delete a tree whatever modes its files were given; whether it is gone.

    Links are not followed, and what others remove or add meanwhile does no harm. Never raises ``OSError``: what can't
    be removed is logged and left, for it must not cost anybody a verdict.
    """
    kept: list[str] = []
    try:
        _clear(path, kept)
    except (_Moved, _TooLong):
        kept.append("others write there")
    except NotADirectoryError:
        _drop(path, kept)
    except FileNotFoundError:
        return True
    except OSError as error:
        kept.append(_said(error))
    else:
        _drop(path, kept, directory=True)
    if kept:
        log.warning(
            "%s can't be removed and is left: %s. Remove it by hand once nothing uses it, then this is not said again",
            path,
            kept[0],
        )
    return not kept


def size(path: Path) -> int:
    """Bytes on disk of the files of a tree, as far as it can be read within ten seconds."""
    total = 0
    with contextlib.suppress(OSError, _Moved, _TooLong), _Walk(path, _SIZE_S) as walk:
        total += _files(walk)
        while len(walk.levels) > 1 or walk.here.todo:
            walk.in_time()
            if not walk.here.todo:
                walk.up()
                continue
            with contextlib.suppress(OSError):
                walk.down(walk.here.todo.pop())
                total += _files(walk)
    return total


def _files(walk: _Walk) -> int:
    """Bytes of the files of the directory where the walk is; its directories are noted."""
    total = 0
    with os.scandir(walk.fd) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    walk.here.todo.append(entry.name)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _clear(root: Path, kept: list[str]) -> None:
    """Remove all that is in a directory; ``kept`` gets the reasons for what can't be removed."""
    for last in [False] * (_TRIES - 1) + [True]:
        kept.clear()
        with _Walk(root, _REMOVE_S) as walk:
            try:
                _empty(walk, kept)
                return
            except _Moved:
                if last:
                    raise


def _empty(walk: _Walk, kept: list[str]) -> None:
    while True:
        walk.in_time()
        here = walk.here
        if not here.todo:
            # Listed until nothing is found, for entries may have come since.
            _unlink_files(walk, kept)
        if here.todo:
            name = here.todo.pop()
            try:
                walk.down(name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                _keep(here, name, error, kept)
        elif len(walk.levels) == 1:
            return
        else:
            left = walk.up()
            try:
                os.rmdir(left.name, dir_fd=walk.fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                if left.stuck or error.errno != errno.ENOTEMPTY:
                    _keep(walk.here, left.name, error, kept)


def _unlink_files(walk: _Walk, kept: list[str]) -> None:
    """Remove the files of the directory where the walk is, a batch at a time, until there are directories to enter."""
    here = walk.here
    while not here.todo:
        walk.in_time()
        try:
            with os.scandir(walk.fd) as entries:
                batch = list(itertools.islice((e for e in entries if e.name not in here.stuck), _BATCH))
        except FileNotFoundError:
            return
        except OSError as error:
            _keep(here, "", error, kept)
            return
        if not batch:
            return
        for entry in batch:
            try:
                if entry.is_dir(follow_symlinks=False):
                    here.todo.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=walk.fd)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                here.todo.append(entry.name)
            except OSError as error:
                _keep(here, entry.name, error, kept)


def _keep(level: _Level, name: str, error: OSError, kept: list[str]) -> None:
    level.stuck.add(name)
    if not kept:
        kept.append(_said(error))


def _drop(path: Path, kept: list[str], *, directory: bool = False) -> None:
    try:
        if directory:
            path.rmdir()
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        kept.append(_said(error))


def _said(error: OSError) -> str:
    return f"{os.strerror(error.errno or 0)} ({str(error.filename)[:80]!r})"


def _mark(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _enter(name: str, parent: int | None) -> int:
    """Open a directory, giving its owner back the rights to read and change it."""
    try:
        fd = os.open(name, _OPEN, dir_fd=parent)
    except PermissionError:
        # A descriptor that needs no right to what it names; its link in /proc is the only way to chmod through it.
        named = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{named}", _OWNER)
        finally:
            os.close(named)
        fd = os.open(name, _OPEN, dir_fd=parent)
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_mode & _OWNER != _OWNER:
            os.fchmod(fd, _OWNER)
    return fd
