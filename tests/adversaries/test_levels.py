"""Verdicts do not depend on who runs the harness or how strongly candidates can be confined.

Honest files at every level that the machine has, as root and as an ordinary user; hacks wherever the level holds a
candidate back (as root the weakest level does not, so they are not run there).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fk_core import settings as fk_settings
from fk_core.sandbox import exposure, levels
from tests.adversaries.corpus_index import Entry, entries
from tests.sandbox.test_as_ordinary_user import USER, _packages, _python

CHECKOUT = Path(__file__).parents[2]
AVAILABLE = levels.available(fk_settings.load({}))
HONEST = [e for e in entries() if e.expect == "accept" and not e.slow and not e.needs_gpu]
# One case is judged at each level: what is wrong for other shapes, forms or values only, it can't show.
NEEDS_MORE = ("input_special", "shape_special", "input_mutation", "domain", "precision")
HACKS = [e for e in entries() if e.expect == "reject" and not e.slow and not e.needs_gpu and e.kind not in NEEDS_MORE]
SOME_HACKS = HACKS[:: max(1, len(HACKS) // 24)]
LEVELS = ("namespaces", "landlock+seccomp", "process")
WAYS = [(level, user) for level in LEVELS for user in ("root", "ordinary")]
# What a level holds back, and one that compiles: these are tried in every way.
TOUCHING = ("subprocess", "tempfile", "environment", "thread_at_import", "logging", "custom_op", "autotune")


def part(way: int, honest: list[Entry] = HONEST) -> list[Entry]:
    """Honest files for one of :data:`WAYS`: those that touch what is confined, and a third of the others. Each of them
    is tried twice, as root and as an ordinary user, at two levels.
    """
    others = [e for e in honest if e.kind.removeprefix("honest_") not in TOUCHING]
    return [e for e in honest if e not in others] + others[way % 3 :: 3]


def submit(chosen: list[Entry], level: str, *, root: bool, device: str = "cpu") -> dict[str, list[object]]:
    """Validate the files in a process of its own at this level, as root or as an ordinary user."""
    python, prefix = sys.executable, []
    if not root:
        found, setpriv = _python(), shutil.which("setpriv")
        if os.geteuid() != 0 or setpriv is None or found is None:
            pytest.skip("needs root, setpriv and a Python of this version that other users can run")
        python, prefix = found, [setpriv, f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    elif os.geteuid() != 0:
        pytest.skip("needs root")
    place = Path("/var/tmp") / f"fk-levels-{os.getpid()}"
    place.mkdir()
    if not root:
        os.chown(place, USER, USER)
    env = {
        "PATH": os.environ["PATH"] if root else "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(place),
        "FK_HOME": str(place / "home"),
        "FK_LOCK_DIR": str(place / "locks"),
        "FK_SANDBOX": level,
        "PYTHONPATH": ":".join([str(Path(exposure.fk_core.__file__).parents[1]), *_packages()]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [*prefix, python, "-m", "tests.adversaries.submit_all", device, *[e.path.name for e in chosen]]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, cwd=CHECKOUT, check=False)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found_all: dict[str, list[object]] = json.loads(done.stdout)
    assert found_all.pop("sandbox") == level
    return found_all


def test_every_honest_file_has_its_turns() -> None:
    tried = {e.path.name: [WAYS[n] for n in range(len(WAYS)) if e in part(n)] for e in HONEST}
    assert set(tried) == {e.path.name for e in HONEST}
    for ways in tried.values():
        assert len(ways) in (2, len(WAYS))
        assert len({level for level, _ in ways}) >= 2
        assert {user for _, user in ways} == {"root", "ordinary"}


def no_flags(chosen: list[Entry], level: str, user: str, device: str = "cpu") -> None:
    if level not in AVAILABLE:
        pytest.skip(f"this machine does not have {level}")
    found = submit(chosen, level, root=user == "root", device=device)
    assert {name: told for name, told in found.items() if told[0] != "PASSED" or told[1]} == {}
    assert len(found) == len(chosen)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("level", "user"), WAYS)
def test_no_honest_file_is_flagged(level: str, user: str) -> None:
    no_flags(part(WAYS.index((level, user))), level, user)


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("level", "user"), WAYS)
def test_no_honest_file_is_flagged_in_any_way(level: str, user: str) -> None:
    no_flags(HONEST, level, user)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("level", "user"),
    [
        ("namespaces", "ordinary"),
        ("landlock+seccomp", "root"),
        ("landlock+seccomp", "ordinary"),
        ("process", "ordinary"),
    ],
)
def test_hacks_are_rejected_there_too(level: str, user: str) -> None:
    if level not in AVAILABLE:
        pytest.skip(f"this machine does not have {level}")
    found = submit(SOME_HACKS, level, root=user == "root")
    assert [name for name, told in found.items() if told[0] == "PASSED"] == []
    assert len(found) == len(SOME_HACKS)
