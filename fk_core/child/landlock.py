"""Landlock: an unprivileged process shuts itself out of files, TCP, abstract sockets and other processes' signals.

Rules only allow, and an allowed directory allows all below it; a hidden path inside an allowed directory is left out by
allowing its siblings one by one. What landlock can't hold back, at any version up to 7: reading a file's metadata, and
changing mode, owner or times of files that the same user owns.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from fk_core.child import syscalls

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_VERSION = (1 << 13) - 1
_READ = EXECUTE | READ_FILE | READ_DIR
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_NET_BIND_AND_CONNECT_TCP = 0b11
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def version() -> int:
    """The kernel's landlock version; 0 where there is none."""
    try:
        return syscalls.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG, what="landlock version")
    except OSError:
        return 0


def restrict(*, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str], hidden: Iterable[str]) -> int:
    """Restrict this process and all it starts; needs no_new_privs. Give the landlock version used."""
    abi = version()
    if abi < 1:
        raise OSError("this kernel has no landlock")
    files = _FIRST_VERSION
    if abi >= 2:
        files |= REFER
    if abi >= 3:
        files |= TRUNCATE
    if abi >= 5:
        files |= IOCTL_DEV
    attributes = struct.pack("<Q", files)
    if abi >= 4:
        attributes += struct.pack("<Q", _NET_BIND_AND_CONNECT_TCP)
    if abi >= 6:
        attributes += struct.pack("<Q", _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = syscalls.syscall(_CREATE_RULESET, attributes, len(attributes), 0, what="landlock_create_ruleset")
    try:
        hidden_paths = sorted(os.path.realpath(p) for p in hidden)
        for path in readable:
            for part in without(os.path.realpath(path), hidden_paths):
                _allow_path(ruleset, part, _READ & files)
        for path in writable:
            _allow_path(ruleset, path, files & ~IOCTL_DEV)
        # CUDA does not start where it can't name its threads. The descriptor stays open: without it the kernel may
        # forget the directory, and with it the rule.
        _allow(ruleset, os.open("/proc/self/task", os.O_PATH | os.O_CLOEXEC), (WRITE_FILE | TRUNCATE) & files)
        for path in devices:
            _allow_path(ruleset, path, (READ_FILE | WRITE_FILE | READ_DIR | IOCTL_DEV) & files)
        syscalls.syscall(_RESTRICT_SELF, ruleset, 0, what="landlock_restrict_self")
    finally:
        os.close(ruleset)
    return abi


def without(path: str, hidden: list[str]) -> list[str]:
    """Paths that together allow everything below ``path`` but the hidden ones."""
    if path in hidden:
        return []
    prefix = path.rstrip("/") + "/"
    inside = [h for h in hidden if h.startswith(prefix)]
    if not inside:
        return [path]
    parts: list[str] = []
    for name in sorted(os.listdir(path)):
        child = prefix + name
        if not os.path.islink(child):  # a link is followed to where it leads, and allowed or not there
            parts += without(child, inside)
    return parts


def _allow_path(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what can't be reached needs no permission
    try:
        _allow(ruleset, fd, access)
    finally:
        os.close(fd)


def _allow(ruleset: int, fd: int, access: int) -> None:
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        access &= _ON_FILES
    rule = ctypes.create_string_buffer(struct.pack("<Qi", access, fd))
    syscalls.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0, what="landlock_add_rule")
