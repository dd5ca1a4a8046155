"""The rules at their edges: non-finite values, rounding to infinity, chunks, hidden scale faults, exactness."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.child import compare, elementwise
from fk_core.child.compare import Item, Judgement, Rule, judge, judge_many, judge_unchanged, same_bits
from fk_core.child.elementwise import half_ulp
from fk_core.child.quantised import judge_quantised, unpack_e2m1

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_ulp_is_half_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    values = torch.tensor([info.smallest_normal, 0.3, 1.0, 1.5, 2.0, 1000.0, info.max], dtype=dtype)
    kind = torch.int16 if dtype.itemsize == 2 else torch.int32
    below = (values.view(kind) - 1).view(dtype).double()
    above = values.double() * 2 - below  # the same distance, except where the binade begins
    spacing = torch.where(values.double().log2() % 1 == 0, 2 * (values.double() - below), above - values.double())
    spacing[0] = info.smallest_normal * info.eps
    assert torch.equal(2 * half_ulp(values.double(), dtype), spacing)
    assert float(half_ulp(torch.zeros(1, dtype=torch.float64), dtype)) == info.smallest_normal * info.eps / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_rounding_has_a_ratio_of_about_one(dtype: torch.dtype) -> None:
    for scale in (1e-30, 1e-4, 1.0, 1e4):
        ref = normal(64, 512) * scale
        found = judge("y", ref.to(dtype), ref, torch.zeros_like(ref), Rule(dtype=dtype))
        assert found.ok
        assert found.max_error_ratio is not None
        assert found.max_error_ratio <= 1.001  # torch rounds fp64 to 16 bits by way of fp32


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_limit_is_where_it_is_said_to_be(dtype: torch.dtype) -> None:
    ref = torch.full((4, 8), 1.5, dtype=torch.float64)
    ulp = torch.finfo(dtype).eps
    for steps, right in ((2, True), (3, False)):  # 4 and 6 half ulps
        got = ref.clone()
        got[2, 3] += steps * ulp
        assert judge("y", got.to(dtype), ref, torch.zeros_like(ref), Rule(generic=False)).ok is right


def test_overflow_to_infinity_is_right_only_where_the_value_does_not_fit() -> None:
    ref = torch.tensor([[7e4, -7e4, 65519.0, 6e4, 1.0]], dtype=torch.float64)
    got = torch.tensor([[math.inf, -math.inf, math.inf, 6e4, 1.0]], dtype=torch.float16)
    mag = ref.abs()
    assert judge("y", got, ref, mag, Rule(generic=False)).ok
    for place, value in ((0, -math.inf), (0, 65504.0), (3, math.inf), (4, math.nan)):
        wrong = got.clone()
        wrong[0, place] = value
        assert not judge("y", wrong, ref, mag, Rule(generic=False)).ok, (place, value)


def test_flushed_denormals_pass_and_lost_normals_do_not() -> None:
    ref = torch.tensor([[1e-39, -3e-40, 2.0**-126]], dtype=torch.float64)
    assert judge("y", torch.zeros(1, 3), ref, ref.abs(), Rule(generic=False)).ok
    assert not judge("y", torch.zeros(1, 3), ref * 64, ref.abs(), Rule(generic=False)).ok


def test_an_infinite_or_nan_mag_excuses_nothing() -> None:
    ref = normal(4, 64)
    for mag in (math.inf, math.nan):
        got = ref.to(torch.bfloat16)
        got[1, 1] += 1
        assert not judge("y", got, ref, torch.full_like(ref, mag), Rule()).ok


def test_a_mag_of_minus_infinity_asks_for_the_exact_value() -> None:
    ref = normal(4, 64).to(torch.bfloat16).double()
    mag = ref.abs()
    mag[2] = -math.inf
    got = ref.to(torch.bfloat16)
    assert judge("y", got, ref, mag, Rule(generic=False)).ok
    for row, right in ((1, True), (2, False)):
        changed = got.clone()
        changed.view(torch.int16)[row, 5] += 1
        assert judge("y", changed, ref, mag, Rule(generic=False)).ok is right


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scaled_row_is_seen_below_half_an_ulp(dtype: torch.dtype) -> None:
    ref = normal(8, 8192)
    assert judge("y", ref.to(dtype), ref, ref.abs(), Rule()).ok
    factor = 1 + 0.8 * torch.finfo(dtype).eps if dtype != torch.float32 else 1 + 1e-5
    scaled = ref.clone()
    scaled[5] *= factor
    found = judge("y", scaled.to(dtype), ref, ref.abs(), Rule(limit=1e9))
    assert found.outcome == "WRONG_VALUES"
    if dtype != torch.float32:  # there each element tells already
        assert found.pattern == "whole rows scaled"
        assert judge("y", scaled.to(dtype), ref, ref.abs(), Rule(limit=1e9, generic=False)).ok
    assert found.first_mismatch is not None
    assert found.first_mismatch["index"][0] == 5


def test_a_factor_lost_in_a_rounded_intermediate_is_honest() -> None:
    """Norms that round before they multiply by the weight, as production kernels do: a row may lose its scale."""
    x = normal(64, 4096).to(torch.bfloat16).double()
    weight = (0.5 + torch.rand(4096, generator=torch.Generator().manual_seed(4))).to(torch.bfloat16).double()
    for factor in (1 + 2.0**-9.1, 1 - 2.0**-10.1, 1 + 2.0**-11, 1.4142, 0.999):
        ref = x * factor * weight
        got = ((x * factor).to(torch.bfloat16).double() * weight).to(torch.bfloat16)
        found = judge("y", got, ref, ref.abs() * 64, Rule())
        assert found.ok, found


def test_noise_over_all_elements_is_seen() -> None:
    ref = normal(64, 1024)
    noisy = ref * (1 + 2.0**-7 * (torch.rand(ref.shape, generator=torch.Generator().manual_seed(6)) - 0.5) * 2.5)
    found = judge("y", noisy.to(torch.bfloat16), ref, ref.abs(), Rule(limit=1e9))
    assert found.outcome == "WRONG_VALUES"
    assert found.pattern == "spread over all elements"
    assert "rounded too often" in found.note


def test_a_wrong_constant_is_not_called_rounding() -> None:
    ref = normal(64, 1024)
    found = judge("y", (ref * 0.9945).to(torch.bfloat16), ref, ref.abs(), Rule(limit=1e9))
    assert found.pattern == "spread over all elements"
    assert "0.9945 times" in found.note
    assert "a constant" in found.note


def test_a_baseline_that_rounds_more_often_widens_the_rms_rule() -> None:
    rule = Rule().beside(Judgement("y", True, rms_ratio=1.2, row_scale_ratio=0.8))
    assert rule.rms_limit == pytest.approx(1.68)
    assert rule.row_limit == pytest.approx(2.0)
    assert rule.limit == Rule().limit
    assert Rule().beside(Judgement("y", False, "WRONG_VALUES", rms_ratio=50.0)) == Rule()
    assert Rule().beside(Judgement("y", True, rms_ratio=0.5, row_scale_ratio=0.1)) == Rule()


def test_chunks_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = normal(50, 100)
    got = ref.to(torch.bfloat16)
    got[49, 99] += 2
    whole = judge("y", got, ref, ref.abs(), Rule())
    monkeypatch.setitem(elementwise._CHUNK, "cpu", 300)
    parts = judge("y", got, ref, ref.abs(), Rule())
    assert parts.as_dict() == whole.as_dict() | {"rms_ratio": pytest.approx(whole.rms_ratio)}
    assert parts.first_mismatch is not None
    assert parts.first_mismatch["index"] == [49, 99]


def test_many_answers_come_in_order() -> None:
    ref = normal(3, 70)
    right, wrong = ref.to(torch.float32), ref.to(torch.float32) + 1
    integers = torch.arange(5)
    found = judge_many(
        [
            Item("a", wrong, ref, ref.abs(), Rule()),
            Item("b", None, ref, ref.abs(), Rule()),
            Item("c", right, ref, ref.abs(), Rule()),
            Item("d", integers, integers.clone(), None, Rule(kind="integer")),
            Item("e", right[:2], ref, ref.abs(), Rule()),
            Item("f", right, ref, ref.abs(), Rule(dtype=torch.bfloat16)),
            Item("g", integers.view(1, 5), ref[:1, :5], None, Rule()),
        ]
    )
    assert [one.name for one in found] == list("abcdefg")
    assert [one.outcome for one in found] == [
        "WRONG_VALUES", "WRONG_SHAPE", "", "", "WRONG_SHAPE", "WRONG_DTYPE", "WRONG_DTYPE",
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (1,), (0, 8), (2, 3, 4), (5, 1)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    ref = normal(*shape) if shape else torch.tensor(1.5, dtype=torch.float64)
    assert judge("y", ref.float(), ref, ref.abs(), Rule()).ok
    if ref.numel():
        assert not judge("y", ref.float() + 1, ref, ref.abs(), Rule()).ok


def test_an_output_with_gaps_between_rows_is_read_as_it_is() -> None:
    ref = normal(16, 32)
    buffer = torch.full((16, 40), math.nan)
    buffer[:, :32] = ref.float()
    assert judge("y", buffer[:, :32], ref, ref.abs(), Rule()).ok


def test_log_sum_exp_is_judged_by_absolute_error() -> None:
    ref = torch.tensor([[1e-6, 8.0, -math.inf]], dtype=torch.float64)
    got = torch.tensor([[1.1e-6, 8.0, -math.inf]])
    assert judge("lse", got, ref, None, Rule(kind="lse", generic=False)).ok
    assert not judge("y", got, ref, ref.abs(), Rule(generic=False)).ok
    assert not judge("lse", got * 1.4427, ref, None, Rule(kind="lse", generic=False)).ok  # the other base
    assert not judge("lse", got.nan_to_num(neginf=-1e9), ref, None, Rule(kind="lse", generic=False)).ok


def test_judgements_are_fit_for_json() -> None:
    ref = normal(4, 8)
    found = judge("y", torch.full((4, 8), math.nan), ref, ref.abs(), Rule())
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["outcome"] == "NON_FINITE"


def test_unchanged_means_every_bit() -> None:
    before = torch.tensor([0.0, 1.0, math.nan])
    assert judge_unchanged("x", before.clone(), before).ok
    now = before.clone()
    now[0] = -0.0
    found = judge_unchanged("x", now, before)
    assert found.outcome == "MUTATED"
    assert found.first_mismatch is not None
    assert found.first_mismatch["index"] == [0]
    assert not judge_unchanged("x", before.double(), before).ok
    assert same_bits(before, before.clone())
    assert not same_bits(before, now)


def test_a_dispute_between_oracle_and_contract_is_no_verdict() -> None:
    with pytest.raises(ValueError, match="oracle gives"):
        judge("ids", torch.arange(3), normal(3), None, Rule(kind="integer"))
    with pytest.raises(ValueError, match="judge_topk"):
        judge("ids", torch.arange(3), torch.arange(3), None, Rule(kind="topk"))


def test_int8_codes_and_stray_steps() -> None:
    ref = normal(64, 256)
    scale = ref.abs().amax(-1, keepdim=True) / 127
    codes = (ref / scale).round().to(torch.int8)
    rule = Rule(kind="quantised", dtype=torch.int8)
    assert judge_quantised("q", codes, scale.float(), ref, scale, rule).ok
    one = codes.clone()
    one[3, 4] += 1 if one[3, 4] < 0 else -1
    assert judge_quantised("q", one, scale.float(), ref, scale, rule).ok
    one[3, 4] += 3 if one[3, 4] < 0 else -3
    assert not judge_quantised("q", one, scale.float(), ref, scale, rule).ok
    down = (ref / scale).floor().to(torch.int8)
    assert "one step off" in judge_quantised("q", down, scale.float(), ref, scale, rule).note
    assert judge_quantised("q", codes[:1], scale.float(), ref, scale, rule).outcome == "WRONG_SHAPE"


def test_block_scales_and_fp4() -> None:
    ref = normal(8, 128)
    blocks = ref.view(8, 4, 32).abs().amax(-1) / 448
    codes = (ref / blocks.repeat_interleave(32, -1)).to(torch.float8_e4m3fn)
    assert judge_quantised("q", codes, blocks.float(), ref, blocks, Rule(kind="quantised")).ok
    assert not judge_quantised("q", codes, blocks.float().roll(1, 0), ref, blocks, Rule(kind="quantised")).ok
    packed = torch.tensor([[0x21, 0xF8]], dtype=torch.uint8)
    assert unpack_e2m1(packed).tolist() == [[0.5, 1.0, -0.0, -6.0]]


def test_pairs_are_compared_beside_a_call() -> None:
    given = torch.tensor([1.0, float("nan"), -0.0])
    call: dict[str, Any] = {"before": {"x": given}, "after": {"x": given.clone()}, "mutates": {}}
    ref = torch.tensor([1.0, 2.0], dtype=torch.float64)
    out, expected, rules = {"y": ref.float()}, {"y": (ref, torch.ones_like(ref))}, {"y": Rule(generic=False)}
    pairs = [
        (given, given.clone()),
        (given, torch.tensor([1.0, float("nan"), 0.0])),
        (given, given[:2]),
        (given[:0], given[:0].clone()),
    ]
    judged, differ = compare.judge_call_and(out, expected, rules, pairs=pairs, **call)
    assert [j.ok for j in judged] == [True, True]
    assert differ == [False, True, True, False]
    assert compare.judge_call(out, expected, rules, **call) == judged
    call["after"]["x"][0] = 3.0
    judged, differ = compare.judge_call_and(out, expected, rules, pairs=pairs[:1], **call)
    assert [(j.name, j.ok) for j in judged] == [("y", True), ("x", False)]
    assert differ == [False]
