"""Which paths a confined process needs, and which it must not see.

Needed: the system's own directories, this Python with all it imports, the GPU's device files. Everything else at the
top level (home directories, data, mounted disks) is not, and neither is the harness's own data.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fk_core
from fk_core.settings import Settings

_SYSTEM = frozenset(
    {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "nix", "gnu", "sys", "proc"}
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "nvidia", "dri", "kfd", "dxg")
_PRIVATE_BYTES = 1 << 30
_PACKAGE = Path(fk_core.__file__).resolve().parent


@dataclass(frozen=True)
class Needs:
    """Real paths this interpreter needs outside the system's directories, and the symbolic links that lead to them."""

    paths: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@functools.cache
def of_python(search_path: tuple[str, ...]) -> Needs:
    """What importing from ``search_path`` and running compilers needs."""
    wanted = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.executable, str(_PACKAGE)]
    for entry in search_path:
        # Of a checkout only the package is needed, not the tasks, tests and history beside it.
        if os.path.isdir(entry) and Path(entry).resolve() != _PACKAGE.parent:
            wanted.append(entry)
    if any("site-packages" in part or "dist-packages" in part for part in _PACKAGE.parent.parts[-1:]):
        wanted.append(str(_PACKAGE.parent))
    for program in ("ninja", "g++", "gcc", "cc", "c++", "nvcc", "ptxas"):
        found = shutil.which(program)
        if found:
            wanted += [found, os.path.dirname(os.path.realpath(found))]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        wanted.append(os.environ.get(name, ""))
    wanted += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    wanted += _loader_directories()
    return trace(path for path in wanted if path.startswith("/") and os.path.exists(path))


def trace(paths: Iterable[str]) -> Needs:
    """Resolve paths, keeping each symbolic link on the way, and drop what lies in the system's directories."""
    real: dict[str, None] = {}
    links: dict[str, str] = {}
    for path in paths:
        final = _walk(path, links)
        if final != "/" and not _is_system(final):
            real[final] = None
    return Needs(tuple(real), tuple((link, target) for link, target in links.items() if not _is_system(link)))


def view(
    settings: Settings, scratch: Path, search_path: tuple[str, ...], extra: Iterable[Path], hide: Iterable[Path]
) -> dict[str, Any]:
    """The view of ``fk_core.child.mounts`` and the rules of ``fk_core.child.landlock``, as plain data."""
    python = of_python(search_path)
    more = trace([str(path) for path in extra if path.exists()] + [str(scratch.parent)])
    own = os.path.realpath(scratch)
    keeps = dict.fromkeys(python.paths) | dict.fromkeys(p for p in more.paths if p != os.path.realpath(scratch.parent))
    hidden = dict.fromkeys(
        os.path.realpath(path) for path in [settings.home, settings.lock_dir, *hide] if path.exists()
    )
    # A hidden directory may hold a needed one (its scratch does), never the other way about.
    covers = [f"/{name}" for name in sorted(os.listdir("/")) if name not in _SYSTEM | {"dev", "tmp"}]
    covers = [path for path in covers if os.path.isdir(path) and not os.path.islink(path)]
    return {
        "covers": [*covers, *hidden],
        "private": ["/tmp", "/var/tmp", "/dev/shm"],
        "private_bytes": min(settings.limits.file_bytes, _PRIVATE_BYTES),
        "keeps": list(keeps),
        "writable": [own],
        "devices": devices(),
        "links": [*python.links, *more.links],
        "system": [f"/{name}" for name in sorted(_SYSTEM) if os.path.isdir(f"/{name}")],
        "hidden": list(hidden),
    }


def devices() -> list[str]:
    return [f"/dev/{name}" for name in sorted(os.listdir("/dev")) if name in _DEVICES or name.startswith("nvidia")]


def device_groups() -> list[int]:
    """Groups that own GPU device files which not everyone may open."""
    groups = set()
    for path in devices():
        found = os.stat(path)
        if found.st_mode & 0o006 != 0o006 and found.st_gid != 0:
            groups.add(found.st_gid)
    return sorted(groups)


def readable_by_others(search_path: tuple[str, ...], *, rebuilt: bool) -> bool:
    """Whether another user could run this Python. ``rebuilt``: directories above the needed paths don't matter."""
    python = of_python(search_path)
    samples = [os.__file__, str(_PACKAGE / "__init__.py"), os.path.realpath(sys.executable), *python.paths]
    for sample in samples:
        if not _open_to_others(sample):
            return False
        parents = [str(p) for p in Path(sample).parents if str(p) != "/"]
        kept = [p for p in parents if p in python.paths or any(p.startswith(k + "/") for k in python.paths)]
        for parent in kept if rebuilt and not _is_system(sample) else parents:
            if not os.stat(parent).st_mode & 0o001:
                return False
    return True


def _open_to_others(path: str) -> bool:
    mode = os.stat(path).st_mode
    return bool(mode & 0o004) and (not os.path.isdir(path) or bool(mode & 0o001))


def _is_system(path: str) -> bool:
    return path.split("/")[1] in _SYSTEM


def _walk(path: str, links: dict[str, str]) -> str:
    """The real path, with every symbolic link that was followed added to ``links``."""
    parts = [part for part in path.split("/") if part and part != "."]
    here = ""
    followed = 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            here = here.rpartition("/")[0]
            continue
        here_next = f"{here}/{part}"
        if os.path.islink(here_next) and followed < 40:
            followed += 1
            target = os.readlink(here_next)
            links[here_next] = target
            parts = [p for p in target.split("/") if p and p != "."] + parts
            if target.startswith("/"):
                here = ""
            continue
        here = here_next
    return here or "/"


def _loader_directories() -> list[str]:
    """Directories that the dynamic loader is told to search: drivers may live in one."""
    found: list[str] = []
    for config in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")) if os.path.isdir("/etc/ld.so.conf.d") else []:
        try:
            lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found += [line.strip() for line in lines if line.strip().startswith("/")]
    return found
