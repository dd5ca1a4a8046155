"""The Linux calls that Python 3.11 does not wrap: namespaces, mounts, capabilities, prctl.

Every function raises ``OSError`` that names the call. Numbers are those of the kernel headers; x86_64 and aarch64 share
all of the ones used here except ``seccomp``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_REC, MS_PRIVATE = 0x4000, 0x40000

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4

AT_FDCWD = -100
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 0x1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4

_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442
SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(platform.machine(), -1)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522


def _failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def syscall(number: int, *args: object, what: str) -> int:
    """A raw system call. Integers travel as C longs, bytes and ctypes objects as pointers."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = int(_libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        raise _failed(what)
    return result


def _prctl(what: str, option: int, a: int = 0, b: int = 0) -> int:
    result = int(_libc.prctl(option, ctypes.c_ulong(a), ctypes.c_ulong(b), ctypes.c_ulong(0), ctypes.c_ulong(0)))
    if result < 0:
        raise _failed(f"prctl {what}")
    return result


def set_parent_death_signal(number: int) -> None:
    """Ask for a signal when the *thread* that forked this process ends. A change of uid forgets it."""
    _prctl("PDEATHSIG", _PR_SET_PDEATHSIG, number)


def set_dumpable(dumpable: bool) -> None:
    """Undumpable processes can't be traced or read through /proc by others of the same uid."""
    _prctl("DUMPABLE", _PR_SET_DUMPABLE, int(dumpable))


def set_subreaper() -> None:
    """Orphans among the descendants become children of this process, also after setsid and double forks."""
    _prctl("CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    _prctl("NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def set_name(name: str) -> None:
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _prctl("NAME", _PR_SET_NAME, ctypes.addressof(buffer))


def drop_bounding_set() -> None:
    """Give up every capability for good, also for programs run later. Needs CAP_SETPCAP."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            return
        _prctl(f"CAPBSET_DROP {capability}", _PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """Empty the effective, permitted, inheritable and ambient sets."""
    _libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, bytes(24)) < 0:
        raise _failed("capset")


def unshare(flags: int) -> None:
    if _libc.unshare(ctypes.c_int(flags)) < 0:
        raise _failed(f"unshare {flags:#x}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode()) < 0:
        raise _failed(f"mount {kind or 'flags'} on {target}")


def clone_tree(path: str) -> int:
    """A detached copy of the mount tree at a path: a descriptor to attach elsewhere (kernel 5.2)."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return syscall(_SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags, what=f"open_tree {path}")


def attach_tree(tree: int, path: str) -> None:
    what = f"move_mount to {path}"
    syscall(_SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(path), _MOVE_MOUNT_F_EMPTY_PATH, what=what)


def restrict_mount(path: str, attributes: int, *, recursive: bool) -> None:
    """Add mount attributes (read-only, no devices, no set-uid) at a path (kernel 5.12)."""
    raw = struct.pack("<QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    syscall(_SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), flags, raw, len(raw), what=f"mount_setattr {path}")


def restrict_tree(tree: int, attributes: int) -> None:
    """The same for a detached tree."""
    raw = struct.pack("<QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE | _AT_EMPTY_PATH
    syscall(_SYS_MOUNT_SETATTR, tree, b"", flags, raw, len(raw), what="mount_setattr of a detached tree")
