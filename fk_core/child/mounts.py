"""The file system that a candidate in its own mount namespace sees.

Everything is read-only but the scratch directory and a few small private file systems. Directories that hold nothing a
candidate needs (home directories, data, the harness's own records) are covered by an empty file system, in which the
few needed paths below them are put back where they were. So a Python that lives under a directory closed to other
users works, and nothing else of that directory is visible. ``/dev`` holds only harmless devices and the GPU's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Any

from fk_core.child import syscalls

READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
WRITABLE = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
DEVICE = syscalls.MOUNT_ATTR_NOSUID

_TMPFS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_PROC = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


def build(view: dict[str, Any]) -> None:
    """Turn this process's mount namespace into the view.

    ``view``: ``covers`` (directories or files to hide), ``private`` (directories that become private and writable),
    ``private_bytes`` (size of each), ``keeps`` (paths to leave readable), ``writable`` (paths to leave writable),
    ``devices`` (device files), ``links`` (pairs of symbolic link and target to put back inside covered directories).
    """
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    trees: dict[str, tuple[int, int]] = {}
    for paths, attributes in ((view["keeps"], READ_ONLY), (view["writable"], WRITABLE), (view["devices"], DEVICE)):
        for path in paths:
            tree = syscalls.clone_tree(path)
            syscalls.restrict_tree(tree, attributes)
            trees[path] = (tree, attributes)
    syscalls.restrict_mount("/", READ_ONLY, recursive=True)
    sealed = _layer(view, trees)
    for link, target in view["links"]:
        if not os.path.lexists(link):
            _make_directory(os.path.dirname(link))
            os.symlink(target, link)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    for path in sealed:
        syscalls.restrict_mount(path, syscalls.MOUNT_ATTR_RDONLY, recursive=False)
    for tree, _ in trees.values():
        os.close(tree)
    _mount_processes()


def _mount_processes() -> None:
    """A new ``/proc`` that shows this pid namespace. Only the entries of processes can be written: CUDA does not start
    where it can't name its threads there. The system's settings can't, not even by an owner without capabilities."""
    syscalls.mount("proc", "/proc", "proc", _PROC)
    for entry in list(os.scandir("/proc")):
        if entry.name.isdigit() or entry.is_symlink():
            continue
        if entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_mode & 0o222:
            tree = syscalls.clone_tree(entry.path)
            syscalls.restrict_tree(tree, READ_ONLY)
            syscalls.attach_tree(tree, entry.path)
            os.close(tree)


def _layer(view: dict[str, Any], trees: dict[str, tuple[int, int]]) -> list[str]:
    """Mount covers and kept trees from the outside in; give the covers to seal once everything is in place."""
    covers, private = set(view["covers"]) | {"/dev"}, set(view["private"])
    applied: dict[str, bool] = {"/": True}  # path -> the true tree is seen there
    sealed: list[str] = []
    for path in sorted(covers | private | set(trees), key=lambda p: (p.count("/"), p)):
        seen = applied[_innermost(path, applied)]
        if path in trees and path not in private:
            tree, attributes = trees[path]
            if attributes == READ_ONLY and seen and path not in covers:
                continue
            if not os.path.lexists(path):
                _make_place(path, tree)
            syscalls.attach_tree(tree, path)
            applied[path] = True
        elif path in private:
            if not os.path.isdir(path):
                if not seen:
                    _make_directory(path)
                else:
                    continue
            syscalls.mount("tmpfs", path, "tmpfs", _TMPFS, f"mode=1777,size={view['private_bytes']}")
            applied[path] = False
        elif seen and os.path.isdir(path) and not os.path.islink(path):
            syscalls.mount("tmpfs", path, "tmpfs", _TMPFS, "mode=0755,size=1m")
            sealed.append(path)
            applied[path] = False
        elif seen and os.path.isfile(path):
            syscalls.attach_tree(syscalls.clone_tree("/dev/null"), path)
    return sealed


def _innermost(path: str, applied: Iterable[str]) -> str:
    return max((p for p in applied if p == "/" or path.startswith(p + "/")), key=len)


def _make_place(path: str, tree: int) -> None:
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        _make_directory(path)
        return
    _make_directory(os.path.dirname(path))
    os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o444))


def _make_directory(path: str) -> None:
    old = os.umask(0o022)
    try:
        os.makedirs(path, exist_ok=True)
    finally:
        os.umask(old)
