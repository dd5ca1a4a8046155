"""Which stubs are kept, and which of them a new cache gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fk_core.child.triton_version import LAUNCHER
from fk_core.sandbox import triton_stubs
from fk_core.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks")


def made(cache: Path, name: str, file: str = f"{LAUNCHER}.so") -> None:
    (cache / name).mkdir(parents=True)
    (cache / name / file).write_text(name, encoding="ascii")


def kept(settings: Settings) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in triton_stubs.launchers(settings).iterdir()}


def age(settings: Settings, names: list[str]) -> None:
    """As if they had been wanted long ago, the first one last."""
    for n, name in enumerate(names):
        os.utime(triton_stubs.launchers(settings) / name, (1e9 - n, 1e9 - n))


def test_the_launchers_least_recently_wanted_go(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_stubs, "KEPT", 3)
    for name in "ABCD":
        made(tmp_path / "one", name)
    made(tmp_path / "one", "DRIVER", "cuda_utils.so")
    assert triton_stubs.harvest(settings, tmp_path / "one") == 5
    assert len(kept(settings)) == 3
    names = sorted(kept(settings))
    age(settings, names)
    assert triton_stubs.wanted(settings, names[2])
    made(tmp_path / "two", "E")
    triton_stubs.harvest(settings, tmp_path / "two")
    assert sorted(kept(settings)) == sorted([names[0], names[2], "E"])
    assert not triton_stubs.wanted(settings, names[1])
    assert (triton_stubs.directory(settings) / "DRIVER").is_dir(), "the driver's stub is never dropped"


def test_a_new_cache_gets_the_newest_launchers_and_the_drivers_stub(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_stubs, "SEEDED", 2)
    for name in "ABC":
        made(tmp_path / "one", name)
    made(tmp_path / "one", "DRIVER", "cuda_utils.so")
    triton_stubs.harvest(settings, tmp_path / "one")
    age(settings, ["C", "A", "B"])
    os.utime(triton_stubs.directory(settings) / "DRIVER", (0, 0))
    assert triton_stubs.seed(settings, tmp_path / "cache") == 3
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["A", "C", "DRIVER"]
    copy = tmp_path / "cache" / "A" / f"{LAUNCHER}.so"
    assert copy.read_text(encoding="ascii") == "A"
    assert copy.stat().st_nlink == 1, "who owns the copy can't write to the kept one"


def test_what_cannot_be_read_is_passed_over(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "AB":
        made(tmp_path / "one", name)
    copy = triton_stubs._copy

    def fails(source: Path, target: Path) -> None:
        if source.name == "A":
            raise FileNotFoundError(str(source))
        copy(source, target)

    monkeypatch.setattr(triton_stubs, "_copy", fails)
    assert triton_stubs.harvest(settings, tmp_path / "one") == 1
    assert sorted(kept(settings)) == ["B"]
    assert triton_stubs.harvest(settings, tmp_path / "none") == 0
    assert triton_stubs.seed(Settings(home=tmp_path / "new", lock_dir=tmp_path), tmp_path / "cache") == 0
