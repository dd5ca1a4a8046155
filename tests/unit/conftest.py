"""A trial whose candidate is a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fk_core.settings import Limits, Settings
from fk_core.trial import Trial
from tests.descriptors import descriptors
from tests.unit.stage import FakeChild, Make, Play


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Make]:
    children: list[FakeChild] = []

    def make(play: Play, *, call_s: float = 10.0, cancel: threading.Event | None = None) -> Trial:
        child = FakeChild(play)
        children.append(child)
        base = Settings(home=tmp_path, lock_dir=tmp_path)
        settings = replace(base, limits=Limits(call_s=call_s, build_s=call_s, first_call_s=call_s))
        judge: Any = SimpleNamespace(desk=SimpleNamespace(cpu=True))
        return Trial(child, tmp_path, judge, settings, cancel)

    before = descriptors()
    yield make
    for child in children:
        child.end()
    assert not descriptors() - before
