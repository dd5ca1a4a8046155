"""What the search for a sandbox level leaves on disk, and what it says where it can make nothing there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fk_core.errors import HarnessError
from fk_core.sandbox import levels, sweep
from fk_core.settings import Settings

KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
from fk_core.sandbox import levels
from fk_core.settings import Settings
levels.launch = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
levels.explain(Settings(home=Path({home!r}), lock_dir=Path({home!r})))
"""


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks")


def test_nothing_is_left_of_a_search(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    levels.explain(own)
    assert list(own.scratch_dir.iterdir()) == []

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(levels, "_found", {})
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(HarnessError, match=r"tried in .*/scratch: No space left on device"):
        levels.explain(own)
    assert list(own.scratch_dir.iterdir()) == []


def test_what_a_killed_search_leaves_goes_with_the_next_sweep(own: Settings) -> None:
    code = KILLED.format(path=sys.path, home=str(own.home))
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60.0)
    (run,) = own.scratch_dir.iterdir()
    assert [path.name.partition("-")[0] for path in run.iterdir() if path.is_dir()] == ["probe"]
    assert sweep.sweep(own)["scratch"] == [run.name]
    assert list(own.scratch_dir.iterdir()) == []


@pytest.mark.parametrize("below", ["", "home"])
def test_a_file_in_place_of_the_directory(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HarnessError, match="point it to another directory"):
        levels.explain(Settings(home=tmp_path / "file" / below, lock_dir=tmp_path))
