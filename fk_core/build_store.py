"""Kernels that builders compiled, kept from one run of a source to the next.

They are kept by the source's own hash, so that they serve the same source only, together with a list of the inputs they
were built for: a later run builds for new ones only. A source's store is bounded: sizes that no case has are drawn anew
in each run, so that otherwise it would grow with each. When it is full, what is there goes on to serve, and nothing is
added.

Kept is what builders leave, who call the candidate's code on tensors that nobody has written to and get no inputs. The
candidate's own cache is not: it may hold what the candidate noted of this run's inputs.
"""

from __future__ import annotations

import collections
import hashlib
import json
import logging
import secrets
import threading
from pathlib import Path
from typing import Any

from fk_core.sandbox import trees
from fk_core.sandbox.triton_cache import copy_cache
from fk_core.versions import version

log = logging.getLogger(__name__)

KEPT = 256
"""Sources."""
MOST_BYTES = 64 << 20
"""Of what one builder may leave: a kernel with its stages takes some hundred KB."""
FULL_BYTES = 64 << 20
"""Of one source's store: the cases of a run are built first, and their kernels take a fraction of it."""
_LAYOUT = "2"
"""Part of the name of what is kept: what was kept in another way is not used, and goes in time."""


class BuildStore:
    """The store of one source for devices of one capability. Thread-safe, also among processes."""

    def __init__(self, directory: Path, source: str, capability: str) -> None:
        parts = [source, version("triton"), capability, _LAYOUT]
        self.path = directory / hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
        """The kernels. Builders choose names in there: the list lies beside it."""
        self._adding = threading.Lock()

    def serve(self, cache: Path, owner: int | None) -> set[str]:
        """Copy all kernels to a cache; gives the names of the inputs that need not be built again."""
        # The list first: what another run of the source adds to it meanwhile may come too late to be copied.
        known = _read_list(self.path)
        try:
            copy_cache(self.path, cache, owner, most_bytes=FULL_BYTES + MOST_BYTES)
        except OSError as error:
            log.info("nothing is used of an earlier build: %s", error)
            return set()
        return known

    def keep(self, cache: Path) -> bool:
        """Put away what a builder has compiled; whether that could be done."""
        with self._adding:
            if trees.size(self.path) >= FULL_BYTES:
                return False
            try:
                copy_cache(cache, self.path, most_bytes=MOST_BYTES)
            except OSError as error:
                log.info("a build could not be kept: %s", error)
                return False
        return True

    def extend(self, built: set[str]) -> None:
        """Add names of inputs to the list; the oldest stores go when there are many."""
        try:
            # Read anew: meanwhile another run of the source may have built more, or this store was the oldest and went.
            names = built | _read_list(self.path)
            if names:
                _write_list(self.path, names)
            _prune(self.path.parent)
        except OSError as error:
            log.info("a build could not be listed: %s", error)


def name(row: dict[str, Any], shapes: list[list[int]]) -> str:
    """Inputs of one form of one module, whatever their number of rows.

    That differs from run to run, and hardly a kernel is compiled for it. One dimension may as well be a width.
    """
    return json.dumps([row["key"], row["form"], [shape[1:] if len(shape) > 1 else shape for shape in shapes]])


def _read_list(path: Path) -> set[str]:
    """Names of the inputs for which earlier runs have built."""
    try:
        names = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return set()
    return {known for known in names if isinstance(known, str)} if isinstance(names, list) else set()


def _write_list(path: Path, names: set[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_text(json.dumps(sorted(names)), encoding="utf-8")
        part.rename(path.with_suffix(".json"))
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _prune(directory: Path) -> None:
    found: dict[str, list[Path]] = collections.defaultdict(list)
    for path in directory.iterdir() if directory.is_dir() else ():
        found[path.name.lstrip(".").partition(".")[0]].append(path)
    oldest = sorted(found.values(), key=lambda paths: max(map(_changed, paths)))[:-KEPT]
    for path in (path for paths in oldest for path in sorted(paths, key=_is_tree)):
        # The list first: kernels that are not listed are built again, listed ones that are missing would not be.
        if _is_tree(path):
            trees.remove(path)
        else:
            path.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    """When a file, a directory or a link itself was last changed; long ago for one that is gone."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_tree(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
