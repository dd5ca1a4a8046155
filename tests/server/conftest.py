from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client

from fk_server.app import build_server
from fk_server.roots import Roots
from tests.server.fakes import FakeHarness, settings_in


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The only directory from which clients may name files."""
    directory = tmp_path / "my projéct"
    directory.mkdir()
    return directory


@pytest.fixture
def harness(tmp_path: Path) -> FakeHarness:
    return FakeHarness(settings_in(tmp_path / "home"))


@pytest.fixture(params=["legacy", "auto"])
async def client(request: pytest.FixtureRequest, harness: FakeHarness, root: Path) -> AsyncIterator[Client]:
    """A connected client, once in each protocol era."""
    server = build_server(harness, roots=Roots((root.resolve(),)))  # type: ignore[arg-type]
    async with Client(server, mode=request.param) as connected:
        yield connected
