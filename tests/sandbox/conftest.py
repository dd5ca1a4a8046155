"""Settings with small limits, a zygote without torch, and roles started at every level this machine has."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fk_core.sandbox import levels
from fk_core.sandbox.launch import Child, launch
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Limits, Settings
from tests.sandbox.kit import PRELOAD, ROLES, Start

LEVELS = ("namespaces", "landlock+seccomp", "process")


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("fk-home")
    for name in ("journal", "cache", "scratch"):
        (home / name).mkdir()
    (home / "journal" / "secret").write_text("the answer", encoding="ascii")
    return Settings(home=home, lock_dir=home / "locks", limits=Limits(memory_bytes=2 << 30, cpu_s=60.0))


@pytest.fixture(scope="session")
def zygote(settings: Settings) -> Iterator[Zygote]:
    os.environ["FK_TEST_TOKEN"] = "not for children"
    os.environ["LD_PRELOAD_TEST"] = "x"
    zygote = Zygote(settings, interpret=False, preload=PRELOAD, roles=ROLES)
    zygote.start(60.0)
    yield zygote
    zygote.close()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, settings: Settings) -> str:
    why = levels.explain(settings)[request.param]
    if why:
        pytest.skip(f"level {request.param} can't be had here: {why}")
    return str(request.param)


@pytest.fixture(params=LEVELS[:2])
def strong_level(request: pytest.FixtureRequest, settings: Settings) -> str:
    """A level that promises more than limits."""
    why = levels.explain(settings)[request.param]
    if why:
        pytest.skip(f"level {request.param} can't be had here: {why}")
    return str(request.param)


@pytest.fixture
def start(zygote: Zygote, settings: Settings, tmp_path: Path) -> Iterator[Start]:
    """Start a role that runs code; every one is ended after the test, and must then be gone."""
    children: list[Child] = []

    def begin(
        level: str | None, *, role: str = "candidate", limits: dict[str, Any] | None = None, **more: Any
    ) -> Child:
        used = replace(settings, limits=replace(settings.limits, **(limits or {})))
        scratch = settings.scratch_dir / f"{tmp_path.name}-{secrets.token_hex(4)}"
        scratch.mkdir(mode=0o700)
        more.setdefault("cpu", True)
        child = launch(more.pop("zygote", zygote), role, {}, used, level=level, scratch=scratch, **more)
        child.scratch = scratch  # type: ignore[attr-defined]
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        assert not child.alive()
