"""Which libraries a caller can allow a candidate to import."""

from __future__ import annotations

import pytest

from fk_core.child import production
from fk_core.child.baselines.base import policy_libraries
from fk_core.errors import RequestError
from fk_core.permits import check_allowed


def test_every_production_library_can_be_allowed() -> None:
    check_allowed([*production.LIBRARIES, *policy_libraries()])
    check_allowed([])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("nonsense", ""), ("vlm", "vllm"), ("VLLM", ""), ("vllm.model_executor", "vllm"), ("torch", ""), ("", "")],
)
def test_another_name_is_refused_with_those_there_are(name: str, nearest: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_allowed(["vllm", name])
    assert repr(name) in caught.value.message
    assert nearest in caught.value.message
    assert "flash_attn, " in caught.value.hint
