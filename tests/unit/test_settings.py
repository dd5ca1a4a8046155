"""What the environment may say."""

from __future__ import annotations

import pytest

from fk_core import settings
from fk_core.child.confine import LANDLOCK, NAMESPACES, PROCESS
from fk_core.errors import RequestError


def test_levels_are_those_that_children_know() -> None:
    assert settings.SANDBOX_LEVELS == (NAMESPACES, LANDLOCK, PROCESS)
    for level in settings.SANDBOX_LEVELS:
        assert settings.load({"FK_SANDBOX": level}).sandbox == level


def test_an_unknown_level_is_a_wrong_request() -> None:
    with pytest.raises(RequestError, match="FK_SANDBOX=banana") as caught:
        settings.load({"FK_SANDBOX": "banana"})
    assert "landlock" in caught.value.hint
