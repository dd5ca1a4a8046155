"""One harness for many tests, and fresh places for those that need them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_core.harness import Harness
from fk_core.settings import Settings
from tests.harness import kit


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A harness that has to survive whatever is done to its processes."""
    with Harness(kit.settings_at(tmp_path_factory.mktemp("fk"))) as harness:
        harness.warm()
        yield harness


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return kit.settings_at(tmp_path)


@pytest.fixture
def harness(settings: Settings) -> Iterator[Harness]:
    """A harness of one's own; nothing of it may be left."""
    with Harness(settings) as made:
        yield made
    assert kit.none_left(settings), kit.processes_of(settings)


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Random, and the same again for the same test; the seed is printed when a test fails."""
    seed = random.SystemRandom().randrange(1 << 32)
    request.node.add_report_section("setup", "seed", str(seed))
    return random.Random(seed)
