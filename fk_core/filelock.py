"""Locks on files that the kernel gives back when their owner dies, however it dies.

A lock is ``flock`` on an open file description. Two openings of one file exclude each other, in one process as between
processes. A forked child would share its parent's descriptions and so keep the parent's locks alive after the
parent's death, so :class:`Held` closes the child's copies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.002
_BUSY = (errno.EAGAIN, errno.EACCES)


class LockBusy(Exception):
    """The lock did not come free in time; ``pids`` holds it, as far as the kernel says."""

    def __init__(self, path: Path, pids: list[int]) -> None:
        super().__init__(f"{path} stayed locked" + (f" by pid {', '.join(map(str, pids))}" if pids else ""))
        self.path = path
        self.pids = pids


class Held:
    """An open file whose lock is ours until :meth:`close`; a forked child's copy is closed at once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pid = os.getpid()
        _held.add(self)

    @property
    def mine(self) -> bool:
        """False in a forked child, which must leave its parent's files alone."""
        return self.fd >= 0 and self.pid == os.getpid()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        _held.discard(self)
        if fd >= 0:
            os.close(fd)


_held: set[Held] = set()
# Strong on purpose: a lock whose owner was forgotten is still locked, and a child must still close its copy.


def _forget_in_child() -> None:
    for held in list(_held):
        held.close()


os.register_at_fork(after_in_child=_forget_in_child)


def shared_directory(path: Path) -> Path:
    """Makes ``path`` a directory in which every user may create files and none may remove another's (mode 1777)."""
    # Whatever the umask says: a directory above that only its owner may enter would part the users of a host.
    for parent in reversed(path.parents):
        if not parent.is_dir():
            with contextlib.suppress(FileExistsError):
                parent.mkdir()
                parent.chmod(0o755)
    try:
        os.mkdir(path)
        os.chmod(path, 0o1777)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is not a directory (a link is not followed)", str(path)) from None
        # Another process may have died between mkdir and chmod.
        if stat.S_IMODE(found.st_mode) != 0o1777 and found.st_uid == os.geteuid():
            os.chmod(path, 0o1777)
    return path


def open_lock_file(path: Path, mode: int = 0o666) -> int:
    """Opens a lock file for reading, creating it if need be; never through a link.

    The creation is exclusive: a plain ``O_CREAT`` on another user's file in a sticky directory is refused by kernels
    with ``fs.protected_regular`` set.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(100):
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            os.fchmod(fd, mode)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        return fd
    raise OSError(errno.EBUSY, "appears and vanishes again and again", str(path))


def open_if_there(path: Path) -> int | None:
    """Opens another process's lock file for reading; None if it is gone, is a link, or is hidden by its owner.

    Everything else, above all a lack of descriptors, is raised: taking it for absence would grant what is held.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.ENXIO):
            return None
        raise


def try_lock(fd: int, *, shared: bool = False) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno in _BUSY:
            return False
        raise
    return True


def is_free(fd: int) -> bool:
    """Whether nobody holds the file that ``fd`` opens exclusively. Two askers never take each other for a holder."""
    if not try_lock(fd, shared=True):
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


@contextmanager
def mutex(path: Path, timeout_s: float) -> Iterator[None]:
    """Holds ``path`` for a short critical section.

    Raises:
        LockBusy: it did not come free in ``timeout_s``; a stopped process may be sitting on it.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        held = Held(open_lock_file(path))
        try:
            lock_within(held.fd, path, deadline)
            # A cleaner of old files may have unlinked it meanwhile; then others lock a new file under that name.
            if still_named(held.fd, path):
                yield
                return
        finally:
            held.close()


def lock_within(fd: int, path: Path, deadline: float) -> None:
    """Takes the exclusive lock by ``deadline`` (``time.monotonic``) or raises LockBusy."""
    while not try_lock(fd):
        if time.monotonic() >= deadline:
            raise LockBusy(path, lockers(fd))
        time.sleep(_POLL_S)


def still_named(fd: int, path: Path) -> bool:
    try:
        named = os.lstat(path)
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def lockers(fd: int) -> list[int]:
    """Process ids that the kernel lists as holding a flock on this file; empty where it does not say."""
    inode = f":{os.fstat(fd).st_ino}"
    try:
        text = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    rows = [line.split() for line in text.splitlines()]
    flocks = [r for r in rows if len(r) > 5 and r[1] == "FLOCK" and r[5].endswith(inode)]
    return sorted({int(r[4]) for r in flocks if int(r[4]) > 0})
