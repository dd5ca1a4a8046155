"""The loose comparison of what gates sampled: right answers are near, answers to other inputs are far."""

from __future__ import annotations

import pytest
import torch

from fk_core.child.judge_timing import _share_apart

ROWS, VALUES = 40, 64


def _far(one: torch.Tensor, other: torch.Tensor) -> list[bool]:
    return [share > 0 for share in _share_apart(one, other).tolist()]


def softmax(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(ROWS, 512, generator=generator), -1)[:, :VALUES].contiguous()


def normal(seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(ROWS, VALUES, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_another_rounding_is_near(dtype: torch.dtype) -> None:
    base = normal(1, torch.float32)
    eps = torch.finfo(dtype).eps
    other = base * (1 + eps * torch.rand(base.shape, generator=torch.Generator().manual_seed(2)))
    assert not any(_far(other.to(dtype), base.to(dtype)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_answers_to_other_inputs_are_far(dtype: torch.dtype) -> None:
    assert all(_far(normal(3, dtype), normal(4, dtype)))


def test_so_they_are_where_all_values_are_alike() -> None:
    assert not any(_far(softmax(1), softmax(1) * (1 + 1e-6)))
    assert all(_far(softmax(1), softmax(2)))


def test_one_stale_call_among_right_ones_is_found() -> None:
    base = normal(5, torch.bfloat16)
    other = base.clone()
    other[17] = normal(6, torch.bfloat16)[17]
    assert [n for n, far in enumerate(_far(other, base)) if far] == [17]


def test_poison_is_far() -> None:
    base = normal(7, torch.bfloat16)
    assert all(_far(torch.full_like(base, float("nan")), base))


def test_integers_have_to_be_equal() -> None:
    base = torch.arange(ROWS * VALUES, dtype=torch.int32).view(ROWS, VALUES)
    other = base.clone()
    other[3, 9] += 1
    assert [n for n, far in enumerate(_far(other, base)) if far] == [3]
