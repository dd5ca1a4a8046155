"""Trees of processes as the kernel sees them: who descends from whom, and ending them all."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

_PAGE = os.sysconf("SC_PAGE_SIZE")
_IN_MEMORY = ("/memfd:", "/dev/shm/")
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def children(pid: int) -> list[int]:
    """The children of a process, from whichever of its threads."""
    if not _LISTS_CHILDREN:
        return _children_by_scan(pid)
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    return found


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    queue = [pid]
    while queue:
        for child in children(queue.pop()):
            if child not in found:
                found.append(child)
                queue.append(child)
    return found


def thread_names(pid: int) -> list[str]:
    """The kernel's names of the threads of a process, its first one first; none for a process that is gone."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
                found.append(file.read().strip())
    return found


def private_bytes(pid: int) -> int:
    """Resident memory that is not backed by a file or shared memory; 0 for a process that is gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            words = file.read().split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return max(0, int(words[1]) - int(words[2])) * _PAGE


def shared_bytes(pids: Iterable[int]) -> int:
    """Memory behind files that live in memory, which these processes have open or mapped, all of them together.

    Open ones (memfds, files of ``/dev/shm``) count once each, resident or not, for whatever they hold. What is mapped
    and no longer open can't be told apart cheaply: the most that one process has mapped is added. So what is both, as
    the arena that the judge shares with a candidate, counts twice; arenas are small beside any limit. Left out are the
    descriptors of a process that this one may not look into, and those on their way through a socket.
    """
    held: dict[tuple[int, int], int] = {}
    mapped = 0
    for pid in pids:
        mapped = max(mapped, _mapped_shared_bytes(pid))
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    link = f"/proc/{pid}/fd/{fd}"
                    if os.readlink(link).startswith(_IN_MEMORY):
                        status = os.stat(link)
                        held[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(held.values()) + mapped


def _mapped_shared_bytes(pid: int) -> int:
    """Resident shared memory of one process, whoever else has it; 0 for a process that is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"RssShmem:"):
                return int(line.split()[1]) * 1024
    return 0


def kill_descendants(*, spare: frozenset[int] = frozenset(), timeout_s: float = 10.0) -> bool:
    """End and reap every child of this process, their children and so on, except the trees of ``spare``.

    This process must be a subreaper, so that orphans among them become its children. All are stopped before any is
    killed: a bomb that forks faster than it can be listed stands still then. False when some outlived the time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        own = os.getpid()
        targets = [pid for pid in children(own) if pid not in spare]
        for pid in list(targets):
            targets += descendants(pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in targets:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        reap(spare=spare)
        if not [pid for pid in children(own) if pid not in spare]:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)


def reap(*, spare: frozenset[int] = frozenset()) -> None:
    """Collect every dead child that is not in ``spare``."""
    for pid in children(os.getpid()):
        if pid not in spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def kill_user(uid: int) -> None:
    """End everything that runs under a uid, in one stroke. The caller must be root, and the uid no one else's."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def threads_of_user(uid: int) -> int:
    """How many threads a user runs now: what the kernel counts against RLIMIT_NPROC."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return total


def _children_by_scan(pid: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(name))
    return found
