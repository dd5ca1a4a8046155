"""Run by root: the whole of this directory's tests once more as a user without any privilege."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fk_core.sandbox import exposure, levels
from fk_core.sandbox.zygote import search_path
from fk_core.settings import Settings
from tests.sandbox.kit import say

USER = 61234
HERE = Path(__file__).parent


def _python() -> str | None:
    """An interpreter of this version that another user can run."""
    if exposure.readable_by_others(search_path(), rebuilt=False):
        return sys.executable
    version = sysconfig.get_python_version()
    other = shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin")
    if other is None or not all(p.stat().st_mode & 0o001 for p in Path(other).resolve().parents):
        return None
    return other


def _packages() -> list[str]:
    """Where this interpreter finds packages: another one of the same version is to find them, too."""
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    own = (standard, standard / "lib-dynload", Path.cwd().resolve())
    return [path for path in sys.path if path and Path(path).is_dir() and Path(path).resolve() not in own]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_everything_as_an_ordinary_user(tmp_path: Path) -> None:
    setpriv, python = shutil.which("setpriv"), _python()
    if os.geteuid() != 0 or setpriv is None or python is None:
        pytest.skip("needs root, setpriv and a Python of this version that other users can run")
    place = Path("/var/tmp") / f"fk-ordinary-{os.getpid()}"
    place.mkdir()
    os.chown(place, USER, USER)
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(place),
        "TMPDIR": str(place),
        "PYTHONPATH": ":".join([str(Path(exposure.fk_core.__file__).parents[1]), *_packages()]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [setpriv, f"--reuid={USER}", f"--regid={USER}", "--clear-groups", python, "-m", "pytest", str(HERE)]
    command += [
        "-q",
        "-p",
        "no:cacheprovider",
        "-x",
        "--timeout=90",
        f"--ignore={__file__}",
        f"--basetemp={place}/tests",
    ]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=380, cwd=HERE.parents[1], check=False
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    tail = done.stdout[-6000:] + done.stderr[-2000:]
    assert done.returncode == 0, tail
    passed = re.search(r"(\d+) passed", tail)
    assert passed, tail
    assert int(passed[1]) > 60, tail
    say(f"as uid {USER}: {tail.strip().splitlines()[-1]}")


def test_the_levels_of_this_machine(settings: Settings) -> None:
    for level, why in levels.explain(settings).items():
        say(f"{level}: {why or 'holds'}")
    assert levels.available(settings)[-1] == "process"
    assert levels.choose(settings) == levels.available(settings)[0]
