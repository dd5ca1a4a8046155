"""Triton's driver stub and launchers: small shared libraries that a C compiler builds once for a machine.

They are the same for every kernel of a signature, so trusted ones are kept and copied into each job's own cache: a
first launch then takes 0.14 to 0.20 s instead of 0.95 s (measured on an H200 machine). Copies, not links: a candidate
may own what is in its cache.

Launchers have a directory of their own, since candidates choose which ones are built: there the ones least recently
wanted go when there are many, and only those most recently wanted are copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path

from fk_core.child.triton_version import LAUNCHER
from fk_core.settings import Settings

KEPT = 512
"""Launchers."""
SEEDED = 32
"""Launchers that a new cache gets, of about 20 KB each; 64 take 5 to 9 ms, almost all of it in the kernel."""


def directory(settings: Settings) -> Path:
    return settings.cache_dir / "triton-stubs"


def launchers(settings: Settings) -> Path:
    return settings.cache_dir / "triton-launchers"


def seed(settings: Settings, cache: Path) -> int:
    """Copy the kept stubs into a new cache; give how many."""
    count = 0
    for entry in (*_newest(directory(settings)), *_newest(launchers(settings))[:SEEDED]):
        with contextlib.suppress(FileNotFoundError):  # another harness dropped it meanwhile
            _copy(entry, cache / entry.name)
            count += 1
    return count


def harvest(settings: Settings, cache: Path | None = None) -> int:
    """Keep the stubs that a *trusted* process has built in its cache, by default the judge's; give how many are new."""
    source = settings.cache_dir / "triton" if cache is None else cache
    count = 0
    for entry in sorted(source.iterdir()) if source.is_dir() else []:
        # Another process may be building there: what is half made is kept the next time.
        with contextlib.suppress(OSError):
            count += _keep(settings, entry)
    for old in _newest(launchers(settings))[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return count


def wanted(settings: Settings, name: str) -> bool:
    """Note that a launcher is in use; whether it is still kept."""
    try:
        os.utime(launchers(settings) / name)
    except OSError:
        return False
    return True


def _keep(settings: Settings, entry: Path) -> bool:
    """Whether a directory of a cache holds a stub that was not kept yet."""
    made = [file.name for file in entry.iterdir() if file.suffix == ".so"] if entry.is_dir() else []
    kept = launchers(settings) if any(name.startswith(LAUNCHER) for name in made) else directory(settings)
    if not made or (kept / entry.name).exists():
        return False
    kept.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: others may be seeding from here.
    part = kept / f".{entry.name}.{os.getpid()}.{threading.get_ident()}"
    try:
        _copy(entry, part)
        part.rename(kept / entry.name)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        return False
    return True


def _newest(kept: Path) -> list[Path]:
    """What is kept there, the most recently wanted first."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(kept) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime_ns, entry.name))
    return [kept / name for _, name in sorted(found, reverse=True)]


def _copy(source: Path, target: Path) -> None:
    files = [name for name in os.listdir(source) if name.endswith(".so")]
    os.makedirs(target, exist_ok=True)
    for name in files:
        shutil.copyfile(source / name, target / name)
