"""What is made on disk has the same modes under every umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_core import rights
from fk_core.errors import HarnessError
from fk_core.filelock import shared_directory
from fk_core.sandbox import levels
from fk_core.settings import Settings


@pytest.fixture(params=[0o000, 0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directories(umask: int, tmp_path: Path) -> None:
    rights.directory(tmp_path / "a" / "b", 0o711)
    assert mode(tmp_path / "a" / "b") == 0o711
    assert mode(tmp_path / "a") == 0o777 & ~umask
    (tmp_path / "c").mkdir(mode=0o700)
    rights.directory(tmp_path / "c")
    assert mode(tmp_path / "c") == 0o700, "what is there already is its owner's choice"


def test_a_directory_of_all_users_can_be_reached_by_all(umask: int, tmp_path: Path) -> None:
    made = shared_directory(tmp_path / "x" / "y" / "locks")
    assert mode(made) == 0o1777
    assert mode(tmp_path / "x") == mode(tmp_path / "x" / "y") == 0o755


@pytest.mark.parametrize("taken", [0o100, 0o200, 0o400, 0o777])
def test_a_umask_that_takes_from_the_owner(taken: int) -> None:
    before = os.umask(taken)
    try:
        with pytest.raises(HarnessError, match=f"umask {taken:04o}"):
            rights.check_own()
        rights.keep_own()
        rights.check_own()
        assert rights._umask() == taken & 0o077
    finally:
        os.umask(before)


def test_no_level_at_all_is_said_with_every_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(levels, "explain", lambda settings: dict.fromkeys(levels.ORDER, "the disk is odd"))
    for wanted in ("", "process"):
        with pytest.raises(HarnessError, match="the disk is odd") as caught:
            levels.choose(Settings(home=tmp_path, lock_dir=tmp_path, sandbox=wanted))
        assert str(tmp_path / "scratch") in caught.value.hint
