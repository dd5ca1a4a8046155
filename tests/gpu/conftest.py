"""Everything here needs a GPU; without one every test says so instead of failing."""

from __future__ import annotations

import pytest

from fk_core.leases.devices import survey


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = survey()
    if found.gpus or found.broken:
        return
    skip = pytest.mark.skip(reason=f"no GPU: {found.note}")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
