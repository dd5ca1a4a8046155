"""The published table of outputs that a comparison rule must accept or reject, each beside an honest counterpart."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fk_core.child.compare import Judgement, Rule, judge, judge_call
from fk_core.child.quantised import judge_quantised
from fk_core.child.selection import judge_topk

TABLE = Path(__file__).with_name("comparator_outputs.tsv")
BF16 = torch.bfloat16
INTERNALS_16 = 2.0**-9
ROWS: dict[tuple[str, str], Callable[[], None]] = {}


def row(reference: str, output: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(check: Callable[[], None]) -> Callable[[], None]:
        ROWS[reference, output] = check
        return check

    return register


def published() -> list[tuple[str, str, str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return [(parts[0], parts[1], parts[2]) for parts in (line.split("\t") for line in lines)]


@pytest.mark.parametrize(("reference", "output", "verdict"), published(), ids=lambda value: value[:40])
def test_published_row(reference: str, output: str, verdict: str) -> None:
    del verdict
    ROWS[reference, output]()


def test_every_row_has_its_check_and_no_other() -> None:
    assert set(ROWS) == {(reference, output) for reference, output, _ in published()}


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=gen(seed), dtype=torch.float64)


def accepts(got: Tensor, ref: Tensor, mag: Tensor | None, rule: Rule | None = None) -> Judgement:
    found = judge("y", got, ref, mag, rule or Rule(dtype=got.dtype))
    assert found.ok, found
    return found


def rejects(
    got: Tensor, ref: Tensor, mag: Tensor | None, rule: Rule | None = None, outcome: str = "WRONG_VALUES"
) -> Judgement:
    found = judge("y", got, ref, mag, rule or Rule(dtype=got.dtype))
    assert not found.ok, found
    assert found.outcome == outcome
    return found


def softmax_mag(ref: Tensor) -> Tensor:
    return torch.where(ref > 0, ref * (1 + 2 * ref.log().abs()), 0.0)


def vocabulary() -> tuple[Tensor, Tensor]:
    ref = torch.softmax(normal(4, 32000), -1)
    accepts(ref.to(BF16), ref, softmax_mag(ref))
    return ref, softmax_mag(ref)


def thousand_rows() -> tuple[Tensor, Tensor]:
    ref = normal(1000, 4096)
    accepts(ref.to(BF16), ref, ref.abs())
    return ref, ref.to(BF16)


@row("bf16 normal (1000x4096)", "0.99% of elements set to 1e30")
def _() -> None:
    ref, got = thousand_rows()
    spoiled = torch.rand(ref.shape, generator=gen(1)) < 0.0099
    got[spoiled] = 1e30
    found = rejects(got, ref, ref.abs())
    assert found.share_wrong is not None
    assert 0.009 < found.share_wrong < 0.011


@row("bf16 normal (1000x4096)", "9 of 1000 rows never written")
def _() -> None:
    ref, got = thousand_rows()
    got[991:] = 0
    found = rejects(got, ref, ref.abs())
    assert "last 9 of 1000 rows" in found.pattern
    assert "never written" in found.pattern
    got[991:] = math.nan
    assert "NaN" in rejects(got, ref, ref.abs(), outcome="NON_FINITE").pattern


@row("bf16 normal (1000x4096)", "one row of 1000 swapped with its neighbour")
def _() -> None:
    ref, got = thousand_rows()
    got[[500, 501]] = got[[501, 500]]
    assert "rows 500 to 501" in rejects(got, ref, ref.abs()).pattern


@row("bf16 softmax over 32000", "all zeros")
def _() -> None:
    ref, mag = vocabulary()
    rejects(torch.zeros_like(ref, dtype=BF16), ref, mag)


@row("bf16 softmax over 32000", "constant 1e-6")
def _() -> None:
    ref, mag = vocabulary()
    rejects(torch.full_like(ref, 1e-6, dtype=BF16), ref, mag)


@row("bf16 softmax over 32000", "uniform 1/32000")
def _() -> None:
    ref, mag = vocabulary()
    rejects(torch.full_like(ref, 1 / 32000, dtype=BF16), ref, mag)


@row("bf16 values of size about 2e-3", "constant 1e-6")
def _() -> None:
    ref = normal(64, 512) * 2e-3
    accepts(ref.to(BF16), ref, ref.abs())
    rejects(torch.full_like(ref, 1e-6, dtype=BF16), ref, ref.abs())


@row("int32 indices around 4000", "every index off by 30")
def _() -> None:
    ref = torch.randint(3900, 4100, (1000,), generator=gen(), dtype=torch.int32)
    rule = Rule(kind="integer", dtype=torch.int32)
    accepts(ref.clone(), ref, None, rule)
    rejects(ref + 30, ref, None, rule)


@row("int64 indices, 10000 of them", "one index wrong")
def _() -> None:
    ref = torch.randint(0, 1 << 60, (10000,), generator=gen())
    rule = Rule(kind="integer", dtype=torch.int64)
    accepts(ref.clone(), ref, None, rule)
    got = ref.clone()
    got[1234] += 1  # too small a change for fp64 to see
    found = rejects(got, ref, None, rule)
    assert found.first_mismatch is not None
    assert found.first_mismatch["index"] == [1234]
    assert found.first_mismatch["got"] == found.first_mismatch["expected"] + 1


@row("bool mask of 1000", "9 flipped")
def _() -> None:
    ref = torch.rand(1000, generator=gen()) < 0.5
    rule = Rule(kind="integer", dtype=torch.bool)
    accepts(ref.clone(), ref, None, rule)
    got = ref.clone()
    got[::120] = ~got[::120]
    assert rejects(got, ref, None, rule).share_wrong == pytest.approx(0.009)


@row("any, with a legal -inf mask in the oracle", "identical")
def _() -> None:
    ref = normal(8, 100)
    ref[:, 60:] = -math.inf
    found = accepts(ref.to(BF16), ref, ref.abs())
    assert found.note == "320 infinities as in the oracle"
    wrong = ref.to(BF16)
    wrong[3, 70] = math.inf
    rejects(wrong, ref, ref.abs(), outcome="NON_FINITE")
    wrong[3, 70] = -3e38
    rejects(wrong, ref, ref.abs(), outcome="NON_FINITE")


@row("any, oracle has a NaN row by contract", "identical")
def _() -> None:
    ref = normal(8, 100)
    ref[2] = math.nan
    assert accepts(ref.to(BF16), ref, ref.abs()).note == "100 NaN as in the oracle"
    rejects(ref.to(BF16).nan_to_num(0.0), ref, ref.abs(), outcome="NON_FINITE")


@row("fp32 softmax", "exp computed in bf16")
def _() -> None:
    x = normal(16, 1000).float()
    ref = torch.softmax(x.double(), -1)
    accepts(torch.softmax(x, -1), ref, softmax_mag(ref))
    e = torch.exp((x - x.amax(-1, keepdim=True)).bfloat16()).float()
    rejects(e / e.sum(-1, keepdim=True), ref, softmax_mag(ref))


def gemm() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b = normal(32, 4096, seed=1).bfloat16(), normal(4096, 48, seed=2).bfloat16()
    ref = a.double() @ b.double()
    mag = (a.double().square() @ b.double().square()).sqrt()
    return a, b, ref, mag


@row("bf16 GEMM K=4096", "honest split-K with fp32 partial sums")
def _() -> None:
    a, b, ref, mag = gemm()
    parts = [x.float() @ y.float() for x, y in zip(a.chunk(8, 1), b.chunk(8, 0), strict=True)]
    accepts(torch.stack(parts).sum(0).to(BF16), ref, mag)


@row("bf16 GEMM K=4096", "8 partial sums rounded to bf16 before adding")
def _() -> None:
    a, b, ref, mag = gemm()
    parts = [(x.float() @ y.float()).to(BF16) for x, y in zip(a.chunk(8, 1), b.chunk(8, 0), strict=True)]
    got = torch.stack(parts).float().sum(0).to(BF16)
    rejects(got, ref, mag)
    accepts(got, ref, mag, Rule(u=INTERNALS_16))


def attention(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (normal(16, 64, seed=seed * 3), normal(1024, 64, seed=seed * 3 + 1), normal(1024, 64, seed=seed * 3 + 2))
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    p = torch.softmax(q.double() @ k.double().T / 8, -1)
    ref = p @ v.double()
    mag = (p.square() @ v.double().square()).sqrt()
    return torch.softmax(q.float() @ k.float().T / 8, -1).to(BF16).float() @ v.float(), ref, mag


@row("bf16 attention, 1024 keys", "P rounded to bf16 before PV (as production kernels do)")
def _() -> None:
    for seed in range(10):
        got, ref, mag = attention(seed)
        accepts(got.to(BF16), ref, mag, Rule(u=INTERNALS_16))
    rejects(got.to(BF16), ref, mag)


@row("bf16 attention, 1024 keys", "one output element wrong by 30%")
def _() -> None:
    for seed in range(60):
        got, ref, mag = attention(seed)
        place = int(ref.abs().flatten().sort().indices[ref.numel() // 2])
        got.view(-1)[place] *= 1.3
        found = rejects(got.to(BF16), ref, mag, Rule(u=INTERNALS_16))
        assert found.pattern.startswith("a single element")


@row("top-k of bf16 logits with ties at the boundary", "another set with equal scores")
def _() -> None:
    scores = torch.tensor([[5.0, 3.0, 3.0, 3.0, 1.0]], dtype=torch.float64)
    for ids in ([0, 1], [0, 2], [3, 0]):
        assert judge_topk("ids", torch.tensor([ids]), scores, None, Rule(kind="topk")).ok
    for ids in ([1, 2], [0, 4], [0, 0], [0, 5], [0, -1]):
        assert not judge_topk("ids", torch.tensor([ids]), scores, None, Rule(kind="topk")).ok, ids


@row("bf16 elementwise", "25% of elements one ulp off")
def _() -> None:
    for seed in range(20):
        ref = normal(64, 1024, seed=seed)
        got = ref.to(BF16)
        off = torch.rand(ref.shape, generator=gen(seed)) < 0.25
        up = torch.rand(ref.shape, generator=gen(seed + 1)) < 0.5
        bits = got.view(torch.int16)
        bits += torch.where(off, torch.where(up, 1, -1), 0).to(torch.int16)
        found = accepts(got, ref, ref.abs())
        total = ref.numel()
        assert found.ulp_histogram["1"] == pytest.approx(total / 4, rel=0.03)
        # Where a binade begins, the next number is two of the smaller ulps away.
        assert found.ulp_histogram["0"] + found.ulp_histogram["1"] == pytest.approx(total, rel=2e-3)
    # A whole row pushed one way is no rounding.
    biased = ref.to(BF16)
    biased.view(torch.int16)[3] += 1
    rejects(biased, ref, ref.abs())


@row("bf16 outputs between 16 and 32", "half an ulp (0.0625) off at ties, 200 seeds")
def _() -> None:
    for seed in range(200):
        steps = torch.randint(128, 256, (8, 128), generator=gen(seed)).double()
        ref = (steps + 0.5) * 0.125
        up = torch.rand(ref.shape, generator=gen(seed + 1)) < 0.5
        accepts((ref + torch.where(up, 0.0625, -0.0625)).clamp(max=31.875).to(BF16), ref, ref.abs())


@row("top-k with equal scores", "other index among the equals")
def _() -> None:
    scores = torch.tensor([[2.0, 7.0, 7.0, 7.0]], dtype=torch.float64)
    for best in (1, 2, 3):
        assert judge_topk("ids", torch.tensor([[best]]), scores, None, Rule(kind="topk")).ok
    assert not judge_topk("ids", torch.tensor([[0]]), scores, None, Rule(kind="topk")).ok


@row("top-k with distinct scores", "second best returned")
def _() -> None:
    scores = normal(64, 128)
    best = scores.topk(9).indices
    assert judge_topk("ids", best[:, :8], scores, None, Rule(kind="topk"), ordered=True).ok
    wrong = best[:, :8].clone()
    wrong[5, 7] = best[5, 8]
    assert judge_topk("ids", wrong, scores, None, Rule(kind="topk")).outcome == "WRONG_VALUES"
    argmax = best[:, 1:2]
    assert not judge_topk("ids", argmax, scores, None, Rule(kind="topk")).ok
    # Scores that were computed may tie within their error, and no further.
    near = torch.tensor([[1.0, 1.0 + 1e-7, 0.9]], dtype=torch.float64)
    assert judge_topk("ids", torch.tensor([[0]]), near, near.abs(), Rule(kind="topk")).ok
    assert not judge_topk("ids", torch.tensor([[2]]), near, near.abs(), Rule(kind="topk")).ok


@row("fp8 e4m3 with scale", "other scale, same dequantised values within half a code")
def _() -> None:
    ref = normal(32, 256)
    ref_scale = ref.abs().amax(-1, keepdim=True) / 448

    def quantise(scale: Tensor) -> Tensor:
        return (ref / scale).clamp(-448, 448).to(torch.float8_e4m3fn)

    exact, free = Rule(kind="quantised", scale="exact"), Rule(kind="quantised", scale="free")
    assert judge_quantised("q", quantise(ref_scale), ref_scale.float(), ref, ref_scale, exact).ok
    for factor in (1.37, 0.5 * 4):
        scale = ref_scale * factor
        assert judge_quantised("q", quantise(scale), scale.float(), ref, ref_scale, free).ok
        assert not judge_quantised("q", quantise(scale), scale.float(), ref, ref_scale, exact).ok
    for factor in (0.8, 16.0):  # clips the largest value; wastes four of the exponents
        scale = ref_scale * factor
        assert not judge_quantised("q", quantise(scale), scale.float(), ref, ref_scale, free).ok
    assert not judge_quantised("q", quantise(ref_scale), (ref_scale * 1.37).float(), ref, ref_scale, free).ok
    power = ref_scale.log2().ceil().exp2()
    ue8m0 = Rule(kind="quantised", scale="ue8m0")
    assert judge_quantised("q", quantise(power), power.float(), ref, power, ue8m0).ok
    assert not judge_quantised("q", quantise(ref_scale), ref_scale.float(), ref, ref_scale, ue8m0).ok


def cache_call(after: Tensor) -> list[Judgement]:
    """Rows 0..2 of new values go to slots 4, -1 (skipped) and 9 of a cache of 12 slots."""
    before, new = normal(12, 16).to(BF16), normal(3, 16, seed=5).to(BF16)
    ref = before.clone()
    ref[4], ref[9] = new[0], new[2]
    return judge_call(
        {},
        {"cache": (ref.double(), None)},
        {"cache": Rule(dtype=BF16)},
        before={"cache": before, "new": new},
        after={"cache": after if after.numel() else ref, "new": new},
        mutates={"cache": "must"},
    )


@row("op that returns None (writes a cache)", "nothing written")
def _() -> None:
    assert all(found.ok for found in cache_call(torch.empty(0)))
    assert not cache_call(normal(12, 16).to(BF16))[0].ok


@row("op that returns None (writes a cache)", "right values, and slot -1 rows written somewhere")
def _() -> None:
    after, new = normal(12, 16).to(BF16), normal(3, 16, seed=5).to(BF16)
    after[4], after[9], after[-1] = new[0], new[2], new[1]
    found = cache_call(after)[0]
    assert not found.ok
    assert "last row (11 of 12)" in found.pattern


@row("op with a `must` argument (rotary q/k, cache, merge)", "right return value, that argument not updated")
def _() -> None:
    q = normal(8, 64).to(BF16)
    turned = -q.double()
    expected = {"out": (turned, turned.abs()), "q": (turned, turned.abs())}
    rules = {"out": Rule(dtype=BF16), "q": Rule(dtype=BF16)}
    for after, right in ((turned.to(BF16), True), (q, False)):
        found = judge_call(
            {"out": turned.to(BF16)}, expected, rules, before={"q": q}, after={"q": after}, mutates={"q": "must"}
        )
        assert [one.ok for one in found] == [True, right]


def residual_call(second: Tensor | None = None, after_x: Tensor | None = None) -> list[Judgement]:
    x, residual = normal(8, 256).to(BF16), normal(8, 256, seed=1).to(BF16)
    total = x.double() + residual.double()
    y = total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    expected = {"y": (y, y.abs() * 16), "residual_out": (total, total.abs())}
    return judge_call(
        {"y": y.to(BF16), "residual_out": total.to(BF16) if second is None else second},
        expected,
        dict.fromkeys(expected, Rule(dtype=BF16)),
        before={"x": x, "residual": residual, "weight": torch.ones(256)},
        after={"x": x if after_x is None else after_x, "residual": residual, "weight": torch.ones(256)},
        mutates={"x": "may", "residual": "may"},
    )


@row("RMSNorm with residual (x and residual are `may`)", "right returns from new memory, arguments untouched")
def _() -> None:
    assert all(found.ok for found in residual_call())
    assert all(found.ok for found in residual_call(after_x=torch.zeros(8, 256, dtype=BF16)))


@row("RMSNorm with residual", "right first output, second output wrong")
def _() -> None:
    residual = normal(8, 256, seed=1).to(BF16)
    assert [found.ok for found in residual_call(second=residual)][:2] == [True, False]


@row("out-of-place op", "right output, input changed")
def _() -> None:
    x = normal(8, 256).to(BF16)
    for after, right in ((x.clone(), True), (x * 0, False)):
        found = judge_call(
            {"y": -x}, {"y": (-x.double(), x.double().abs())}, {"y": Rule(dtype=BF16)},
            before={"x": x}, after={"x": after}, mutates={},
        )  # fmt: skip
        assert [one.ok for one in found] == [True, right]
        assert right or found[1].outcome == "MUTATED"
