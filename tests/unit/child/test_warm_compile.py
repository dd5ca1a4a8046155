"""What the zygote asks other programs, so that no fork has to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("warm")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))}
    env |= {"TRITON_CACHE_DIR": str(folder / "zygote"), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.child.warm_probe", str(folder / "fork")],
        capture_output=True, env=env, cwd=ROOT, timeout=200, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_the_version_of_ptxas_is_asked_with_the_first_kernel(told: dict[str, list[str]]) -> None:
    assert "ptxas --version" in told["compile_one"]


def test_library_and_platform_are_asked_where_there_may_be_none(told: dict[str, list[str]]) -> None:
    """This machine may have no driver: that is no error."""
    assert told["ask_tools"][0] == "ldconfig -p"


def test_a_fork_compiles_and_asks_nothing(told: dict[str, list[str]]) -> None:
    assert told["fork"]
    assert not {"ptxas --version", "ldconfig -p", "file -b"} & set(told["fork"]), told["fork"]
