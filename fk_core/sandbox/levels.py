"""Which sandbox levels this machine gives, found by really starting a child at each and letting it try to get out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from fk_core.child import landlock
from fk_core.child.confine import NAMESPACES
from fk_core.child.wire import ProtocolError
from fk_core.errors import HarnessError
from fk_core.sandbox import sweep, trees
from fk_core.sandbox.launch import ChildGone, launch
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import SANDBOX_LEVELS, Settings

ORDER = SANDBOX_LEVELS
_SIGNAL_SCOPE = 6  # the landlock version that keeps signals in

_lock = threading.Lock()
_found: dict[tuple[int, Path], dict[str, str]] = {}


def available(settings: Settings) -> list[str]:
    """The levels that hold here, best first."""
    why = explain(settings)
    return [level for level in ORDER if not why[level]]


def explain(settings: Settings) -> dict[str, str]:
    """For each level why it can't be used, empty where it can. Tried once per process, about a quarter of a second.

    Raises ``HarnessError`` where nothing can be tried, as on a full disk.
    """
    key = (os.geteuid(), settings.home)
    with _lock:
        if key not in _found:
            _found[key] = _try_all(settings)
        return dict(_found[key])


def choose(settings: Settings) -> str:
    """The best level, or the one that ``FK_SANDBOX`` asks for. Raises ``HarnessError`` where that one doesn't hold."""
    wanted = settings.sandbox
    if not wanted:
        return _best(settings)
    why = explain(settings)[wanted]
    if why:
        raise HarnessError(
            f"FK_SANDBOX={wanted} can't be had on this machine: {why}", hint=f"The best here is {_best(settings)}"
        )
    return wanted


def _best(settings: Settings) -> str:
    """The first level that holds. Without privileges ``process`` does, unless something is broken."""
    levels = available(settings)
    if not levels:
        why = "; ".join(f"{level}: {said}" for level, said in explain(settings).items())
        raise HarnessError(
            f"no process can be confined here, not even by limits: {why}"[:2000],
            hint=f"Check free space and permissions of {settings.scratch_dir}, then run `fk doctor`",
        )
    return levels[0]


def _try_all(settings: Settings) -> dict[str, str]:
    try:
        # As a harness's own: what is left by one that is killed here goes with the next sweep.
        run = sweep.Run(settings)
        try:
            return _try_in(run, settings)
        finally:
            run.close()
    except OSError as error:
        raise HarnessError(
            f"no sandbox level can be tried in {settings.scratch_dir}: {os.strerror(error.errno or 0)}",
            hint=f"Check free space and permissions of FK_HOME ({settings.home}), or point it to another directory",
        ) from error


def _try_in(run: sweep.Run, settings: Settings) -> dict[str, str]:
    zygote = Zygote(settings, interpret=False, preload=())
    try:
        zygote.start(60.0)
        return {level: _try(zygote, settings, level, run.scratch("probe")) for level in ORDER}
    finally:
        zygote.close()


def _try(zygote: Zygote, settings: Settings, level: str, place: Path) -> str:
    """Why the level doesn't hold; empty when it does. ``place`` is an empty directory, which is removed."""
    place.chmod(0o711)
    secret, scratch = place / "secret", place / "scratch"
    secret.write_text("secret", encoding="ascii")
    secret.chmod(0o600)
    scratch.mkdir(mode=0o700)
    outside = [place / "outside", Path("/usr") / f"fk-{place.name}", Path("/etc") / f"fk-{place.name}"]
    config = {
        "level": level,
        "outside": [str(path) for path in outside],
        "secret": str(secret),
        "harness": os.getpid(),
        "signals": level == NAMESPACES or landlock.version() >= _SIGNAL_SCOPE,
    }
    try:
        child = launch(zygote, "probe", config, settings, level=level, scratch=scratch, cpu=True)
        try:
            broken = child.ask({"do": "probe"}, timeout_s=60.0).body["broken"]
        finally:
            child.kill()
        broken += [f"{path} could be written" for path in outside if path.exists()]
    except (HarnessError, ChildGone, ProtocolError) as error:
        return str(error)
    finally:
        for path in outside:
            path.unlink(missing_ok=True)
        trees.remove(place)
    return "; ".join(broken)
