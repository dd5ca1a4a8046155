"""The fused measurement, compiled."""

from __future__ import annotations

import pytest
import torch

from fk_core.child.compare import Rule, judge
from tests.unit.child.measure_probe import compare_paths

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def test_fused_and_plain_measurement_agree() -> None:
    assert compare_paths("cuda", (4, 64, 700, 4096)) == 192


def test_a_large_output_with_one_wrong_element() -> None:
    got = torch.randn(16384, 4096, device="cuda").bfloat16()
    ref = got.double()
    assert judge("y", got, ref, ref.abs(), Rule()).ok
    got[16000, 4095] += 4
    found = judge("y", got, ref, ref.abs(), Rule())
    assert found.first_mismatch is not None
    assert found.first_mismatch["index"] == [16000, 4095]
