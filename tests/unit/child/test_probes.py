"""Draws and the plan of correctness calls."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.catalog import Catalog
from fk_core.child import inputs, row_counts
from fk_core.child.calls import Call, init_defaults
from fk_core.child.distributions import NORM_EXTREMES, UNEQUAL
from fk_core.child.oracle import Oracle

CATALOG = Catalog()
NAMES = CATALOG.names()


def task_of(name: str) -> dict[str, Any]:
    return CATALOG.get(name).model_dump()


def plan_of(name: str, *, cpu: bool, seed: int = 1) -> list[inputs.Probe]:
    task = task_of(name)
    return inputs.plan(task, task["cpu_cases" if cpu else "cases"], seed, cpu=cpu)


@pytest.mark.parametrize("name", sorted(inputs.DISTRIBUTIONS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_draws_follow_from_the_seed_and_fit_the_dtype(name: str, dtype: torch.dtype) -> None:
    one, same, other = (inputs.draw(name, (8, 256), dtype, inputs.generator(seed)) for seed in (1, 1, 2))
    assert one.dtype == dtype
    assert torch.equal(one.nan_to_num(7.0), same.nan_to_num(7.0))
    if name not in ("zeros", "negative_zeros"):
        assert not torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    assert bool(one.isnan().any()) is (name == "nan")
    assert bool(one.isfinite().all()) is (name not in ("masked", "nan"))


def test_what_each_distribution_is_for() -> None:
    def drawn(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return inputs.draw(name, (64, 512), dtype, inputs.generator(3))

    assert float(drawn("large").std()) == pytest.approx(20, rel=0.05)
    assert float(drawn("tiny").abs().max()) < 1e-3
    assert float(drawn("heavy").abs().max()) > 50
    assert float(drawn("shifted").mean()) == pytest.approx(3, rel=0.05)
    assert set(drawn("integers").unique().tolist()) == set(range(-8, 9))
    assert drawn("constant").unique().numel() == 1
    assert bool(drawn("negative_zeros").signbit().all())
    assert float(drawn("negative").max()) < 8
    rows = drawn("repeated_row")
    assert torch.equal(rows[0], rows[-1])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        small = drawn("denormals", dtype).double().abs()
        assert 0 < float(small.max()) <= torch.finfo(dtype).smallest_normal
    channels = drawn("outliers").square().mean(0).sqrt()
    assert int((channels > 100).sum()) == 4
    sums = drawn("cancellation")
    assert float(sums.sum(-1).abs().max()) < 0.1 * float(sums.abs().sum(-1).min())
    masked = drawn("masked")
    assert 0.2 < float(masked.isneginf().double().mean()) < 0.7
    assert not bool(masked.isneginf().all(-1).any()), "no row is masked entirely"
    assert bool(masked.isneginf()[:, -1].any())
    assert bool(masked.isneginf()[:, 0].any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 3, 64])
def test_whole_rows_lie_far_below_zero(rows: int, dtype: torch.dtype) -> None:
    """A maximum that starts at 0, at -80 or at -30000 is not that of such a row."""
    tops = []
    for seed in range(40):
        drawn = inputs.draw("low_rows", (rows, 256), dtype, inputs.generator(seed)).float()
        assert bool(drawn.isfinite().all())
        assert torch.equal(drawn % 128, torch.zeros_like(drawn)), "differences are exact, or so large that exp gives 0"
        top = drawn.amax(-1)
        assert float(top.min()) < -40000
        tops += top.tolist()
        for row in drawn:
            shared = int((row == row.max()).sum())
            deep = float(row.max()) < -40000
            assert (shared > 20) is (dtype != torch.float32 and not deep), "else a log of the sum is lost beside it"
            assert shared == 1 or shared > 20
    assert any(-30000 < top < -100 for top in tops) is (rows > 1)
    assert any(top < -65504 for top in tops) is (dtype != torch.float16)


def test_softmax_gets_rows_that_lie_far_below_zero_in_every_dtype() -> None:
    for cpu in (True, False):
        probes = [p for p in plan_of("softmax", cpu=cpu) if p.distribution == "low_rows" and p.case_id is None]
        cases = task_of("softmax")["cpu_cases" if cpu else "cases"]
        wanted = {(c["dtype"], c["dims"]["cols"].bit_length()) for c in cases}
        shown = {(p.dtype, p.dims["cols"].bit_length()) for p in probes if not p.hidden}
        assert shown == wanted, "kernels choose a loop by the width"
    for name in ("rms_norm", "silu_and_mul"):
        assert not [p for p in plan_of(name, cpu=True) if p.distribution == "low_rows"]


@pytest.mark.parametrize("rows", [2, 3, 64])
def test_a_row_in_three_keeps_a_twentieth_at_the_most(rows: int) -> None:
    for seed in range(20):
        kept = 1 - inputs.draw("masked", (rows, 512), torch.float32, inputs.generator(seed)).isneginf().double().mean(
            -1
        )
        assert float(kept.min()) < 0.09
        assert float(kept.min()) > 0


def test_nan_stand_in_some_rows_and_not_in_others() -> None:
    for rows in (1, 2, 3, 64):
        hit = inputs.draw("nan", (rows, 128), torch.bfloat16, inputs.generator(rows)).isnan()
        assert int(hit.any(-1).sum()) == max(1, rows // 3)
        assert 1 <= int(hit.sum(-1).max()) <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales_leave_no_gap(dtype: torch.dtype) -> None:
    """Whatever range of sizes a kernel gets wrong, between denormals and huge values, some level lies in it."""

    def size(name: str, level: float) -> float:
        return float(inputs.draw(name, (2, 4096), dtype, inputs.generator(3), level).double().abs().max())

    lowest, highest = (1e-6, 2e4) if dtype == torch.float16 else (1e-35, 1e15)
    ends = [(size(name, 0.0), size(name, 1.0)) for name in ("faint", "uneven", "vast")]
    assert ends[0][0] < lowest
    assert ends[-1][1] > highest
    for (_, last), (first, _) in itertools.pairwise(ends):
        assert last >= first
    for name in inputs.SCALES:
        sizes = [size(name, level / 8) for level in range(9)]
        assert sizes == sorted(sizes)
        factors = [big / small for small, big in itertools.pairwise(sizes)]
        assert max(factors) < 1.3 * min(factors)


def test_rows_of_one_tensor_have_scales_of_their_own() -> None:
    sizes = inputs.draw("uneven", (64, 512), torch.float32, inputs.generator(1), 1.0).abs().amax(-1)
    top = float(sizes.max())
    assert 16 <= int((sizes > top / 3).sum()) <= 56
    assert float(sizes.min()) < top / 100


def test_every_class_gets_every_part_of_the_scales() -> None:
    for name in NAMES:
        for seed in range(5):
            probes = plan_of(name, cpu=True, seed=seed)
            for kind in inputs.SCALES:
                mine = [p for p in probes if p.distribution == kind and not p.why.startswith("fresh")]
                levels = sorted(p.level for p in mine if p.level is not None)
                assert len(levels) >= 3
                assert all(int(level * len(levels)) == n for n, level in enumerate(levels))


def test_a_residual_cancels_the_input() -> None:
    drawer = inputs.Drawer("cancellation", {"x": (4, 64), "residual": (4, 64)}, torch.bfloat16, inputs.generator(1))
    x, residual = drawer("x").float(), drawer("residual").float()
    assert float((x + residual).abs().max()) < 0.1 * float(x.abs().max())
    assert not torch.equal(x, -residual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", UNEQUAL)
def test_one_argument_drowns_the_other(name: str, dtype: torch.dtype) -> None:
    for seed in range(20):
        drawer = inputs.Drawer(name, {"x": (8, 512), "residual": (8, 512)}, dtype, inputs.generator(seed))
        x, residual = (drawer(argument).float().square().mean().sqrt() for argument in ("x", "residual"))
        assert 0.95 < float(x) < 1.05
        times = float(residual / x if name == "later_larger" else x / residual)
        assert 1900 < times < 8600


@pytest.mark.parametrize("relation", ["new_values", "other_argument"])
def test_related_calls_of_several_arguments_have_unequal_ones(relation: str) -> None:
    task, probes = task_of("rms_norm"), plan_of("rms_norm", cpu=True)
    oracle = Oracle(task["path"], task["sha256"])
    mine = [i for i, p in enumerate(probes) if p.relation == relation and p.form == "residual"]
    assert mine
    for index in mine:
        made = inputs.materialise(task, probes, index, oracle.make_inputs)
        x, residual = (float(made[name].float().abs().max()) for name in ("x", "residual"))
        assert (residual > 1000 * x) if relation == "other_argument" else (x > 1000 * residual)


def test_an_unknown_distribution_is_named_with_the_known() -> None:
    with pytest.raises(KeyError, match="cancellation"):
        inputs.draw("gaussian", (2, 2), torch.float32, inputs.generator(1))


def test_weights_are_never_all_ones_or_zeros() -> None:
    weight = inputs.draw_state("norm_weight", (4096,), torch.bfloat16, inputs.generator(1)).float()
    assert 0.15 < float((weight < 0).float().mean()) < 0.25
    usual = (weight.abs() >= 0.5) & (weight.abs() <= 1.5)
    assert 0.9 < float(usual.float().mean()) < 0.97
    for width in (96, 4096):
        drawn = inputs.draw_state("norm_weight", (width,), torch.float32, inputs.generator(2))
        assert all(bool((drawn == value).any()) for value in torch.tensor(NORM_EXTREMES)), "trained weights have these"
    linear = inputs.draw_state("linear_weight", (64, 1024), torch.float32, inputs.generator(1))
    assert float(linear.std()) == pytest.approx(1 / 32, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cpu", [True, False])
def test_the_plan_covers_what_it_must(name: str, cpu: bool) -> None:
    task, probes = task_of(name), plan_of(name, cpu=cpu)
    cases = task["cpu_cases" if cpu else "cases"]
    for case in cases:
        full = [probe for probe in probes if probe.case_id == case["id"]]
        assert len({probe.distribution for probe in full}) >= 2
        assert all(probe.dims == case["dims"] and probe.init == case["init"] for probe in full)
    groups = {(case["entry"], case["form"], case["dtype"]) for case in cases}
    for group in groups:
        mine = [probe for probe in probes if (probe.entry, probe.form, probe.dtype) == group]
        assert {probe.distribution for probe in mine} >= set(task["distributions"])
        assert {"new_values", "sparse", "same_values", "rolled"} <= {probe.relation for probe in mine}
        assert {"near", "far", "distant"} <= {probe.layout for probe in mine}
        if len(task["entries"][group[0]]["forms"][group[1]]["arguments"]) > 1:
            assert "other_argument" in {probe.relation for probe in mine}
            assert {probe.distribution for probe in mine} >= set(UNEQUAL)
        assert sum(probe.hidden for probe in mine) >= 3
    shapes = [str(sorted(probe.dims.items())) for probe in probes if probe.why.startswith("fresh")]
    assert len(shapes) == 32
    assert len(set(shapes)) == 1
    assert set(inputs.MANDATORY) <= {probe.distribution for probe in probes}
    if "float32" in task["dtypes"]:
        assert "float32" in {probe.dtype for probe in probes}
    assert len({probe.seed for probe in probes}) == len(probes)
    for index, probe in enumerate(probes):
        assert (probe.base is None) == (probe.relation == "")
        assert probe.base is None or probe.base < index


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_modest(name: str) -> None:
    for cpu, most in ((True, 205), (False, 225)):
        probes = [probe for probe in plan_of(name, cpu=cpu) if probe.unless is None]
        assert len(probes) <= most
        reduced = [probe for probe in probes if probe.case_id is None]
        # On a CPU, where an interpreted kernel pays for each, many rows are rare.
        rows = [math.prod(v for k, v in probe.dims.items() if k in ("tokens", "rows")) for probe in reduced]
        assert sum(count for count in rows if not cpu or count < 128) < (1000 if cpu else 40000)
        assert sum(count >= 128 for count in rows) <= (1 if cpu else len(rows))


def test_seeds_decide_everything_and_differ() -> None:
    assert plan_of(NAMES[0], cpu=True) == plan_of(NAMES[0], cpu=True)
    one, other = plan_of(NAMES[0], cpu=True), plan_of(NAMES[0], cpu=True, seed=2)
    assert not {probe.seed for probe in one} & {probe.seed for probe in other}
    hidden = [[probe.dims for probe in probes if probe.hidden] for probes in (one, other)]
    assert hidden[0] != hidden[1]


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_values_that_kernels_treat_on_their_own_are_tried_where_a_tail_begins(name: str, cpu: bool) -> None:
    """At one width of no case for each form and dtype, so that no kernel is compiled for each of them."""
    wanted = {"nan", "tiny"} | ({"low_rows", "masked"} if name == "softmax" else {"huge"})
    groups: dict[tuple[str, str], dict[tuple[tuple[str, int], ...], set[str]]] = {}
    for probe in plan_of(name, cpu=cpu):
        if probe.hidden and "in no case" in probe.why and not probe.leading:
            dims = tuple(sorted(probe.dims.items()))
            groups.setdefault((probe.form, probe.dtype), {}).setdefault(dims, set()).add(probe.distribution)
    forms = {(c["form"], c["dtype"]) for c in task_of(name)["cpu_cases" if cpu else "cases"]}
    for key in forms:
        assert any(wanted <= tried for tried in groups[key].values()), key


@pytest.mark.parametrize("cpu", [True, False])
def test_what_another_dtype_is_constructed_with_is_tried_in_every_dtype(cpu: bool) -> None:
    task = task_of("softmax")
    cases = task["cpu_cases" if cpu else "cases"]
    dims = {case["init"]["dim"] for case in cases}
    assert len(dims) > 1
    for dtype in {case["dtype"] for case in cases}:
        assert {p.init["dim"] for p in plan_of("softmax", cpu=cpu) if p.dtype == dtype} >= dims


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_tried_with_every_form_and_dtype(name: str, cpu: bool) -> None:
    task, probes = task_of(name), plan_of(name, cpu=cpu)
    for entry, form, dtype in {(c["entry"], c["form"], c["dtype"]) for c in task["cpu_cases" if cpu else "cases"]}:
        mine = [p for p in probes if (p.entry, p.form, p.dtype) == (entry, form, dtype) and p.unless is None]
        for argument, value in init_defaults(task["entries"][entry]["init"]).items():
            assert any(p.init[argument] == value for p in mine), (form, dtype, argument)


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_init_arguments_with_a_range_are_spread_over_it_apart_from_what_was_shown(cpu: bool, alone: bool) -> None:
    """A kernel that knows the shown values only was right now and then, where the drawn one lay beside one of them."""
    task = task_of("rms_norm")
    lowest, highest = task["init_ranges"]["RMSNorm"]["eps"]
    cases = task["cpu_cases" if cpu else "cases"]
    cases = cases[1:2] if alone else cases
    shown = {case["init"]["eps"] for case in task["cases"]} | {1e-6}
    for seed in range(100):
        drawn = [p for p in inputs.plan(task, cases, seed, cpu=cpu) if p.init["eps"] not in shown]
        assert all(p.distribution == "tiny" and p.gating and p.hidden for p in drawn)
        assert {(p.form, p.dtype) for p in drawn} == {(case["form"], case["dtype"]) for case in cases}
        values = sorted(p.init["eps"] for p in drawn)
        assert all(max(value / eps, eps / value) >= 1.25 for value in values for eps in shown)
        assert len(values) >= 2
        for number, value in enumerate(values):
            level = math.log(value / lowest) / math.log(highest / lowest)
            assert number / len(values) - 0.001 <= level <= (number + 1) / len(values) + 0.001


def test_widths_that_are_init_arguments_follow_the_hidden_shape() -> None:
    for probe in plan_of("rms_norm", cpu=True):
        assert probe.init["hidden_size"] == probe.dims["hidden"]


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_row_counts_lie_between_all_powers_of_two(name: str, cpu: bool) -> None:
    task = task_of(name)
    rows = {"tokens": "tokens", "rows": "rows"}[task["tensors"]["x"]["shape"][0]]
    top = 128 if cpu else task["hidden"][rows][1]
    for seed in range(8):
        probes = [p for p in plan_of(name, cpu=cpu, seed=seed) if p.unless is None and p.hidden and not p.leading]
        counts = {(p.form, p.dims[rows]) for p in probes}
        octave = 16
        while octave < top - 3:
            inside = {(form, count) for form, count in counts if octave < count < 2 * octave}
            assert inside, (seed, octave)
            if not cpu or octave == 16:
                assert {form for form, _ in inside} == {p.form for p in probes}
            octave *= 2
        total = sum(p.dims[rows] for p in probes if p.dims[rows] > 16 and (not cpu or p.dims[rows] < 128))
        assert total < (420 if cpu else 40000)
        for probe in probes:
            if cpu and probe.dims[rows] > 16:
                assert all(size <= 192 for key, size in probe.dims.items() if key != rows)


def test_row_counts_are_odd_or_fill_lanes_and_reach_both_ends() -> None:
    source = random.Random(1)
    for padded, every in ((False, range(65, 128, 2)), (True, range(72, 128, 8))):
        assert {row_counts.draw((65, 127), source, padded=padded) for _ in range(4000)} == set(every)
    assert row_counts.octaves(1, 100) == [(17, 31), (33, 63), (65, 100)]
    assert row_counts.octaves(20, 33) == [(20, 31), (33, 33)]
    assert row_counts.octaves(1, 9) == []
    assert row_counts.draw((33, 33), source) == 33


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_leading_dimensions_are_split_where_the_task_says_so(name: str, cpu: bool) -> None:
    task = task_of(name)
    for seed in range(4):
        probes = [p for p in plan_of(name, cpu=cpu, seed=seed) if p.leading]
        for entry_name, entry in task["entries"].items():
            for form_name, form in entry["forms"].items():
                mine = [p for p in probes if (p.entry, p.form) == (entry_name, form_name)]
                assert {len(p.leading) for p in mine} == ({2, 3} if form["leading"] else set())
                for probe in mine:
                    assert math.prod(probe.leading) == probe.dims[form["leading"]]
                    assert all(probe.init[key] == value for key, value in form["leading_init"].items())
                for dtype in {p.dtype for p in mine}:
                    tried = [p for p in mine if p.dtype == dtype]
                    plain = [p.leading for p in tried if not p.layout and len(p.leading) == 2]
                    assert {sides.index(max(sides)) for sides in plain if max(sides) > 7} == {0, 1}
                    assert {(len(p.leading), p.layout) for p in tried if p.layout} == {(2, "heads"), (3, "near")}
                    pairs = [p.leading for p in tried if len(p.leading) == 2]
                    assert any(one == 1 and other > 7 for one, other in pairs), "a batch of one"
                    assert any(one > 7 and other == 1 for one, other in pairs), "one token of each"


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_only_arguments_that_are_no_rows_one_behind_the_other_may_be_refused(name: str, cpu: bool) -> None:
    task = task_of(name)
    for probe in plan_of(name, cpu=cpu):
        call = inputs.call_of(task, probe)
        longer = inputs.buffer_shapes(call, probe)
        assert (longer != call.shapes) is bool(probe.layout)
        assert longer == inputs.buffer_shapes(call, probe), "it follows from the seed"
        assert probe.may_raise or not probe.layout


def test_of_several_arguments_any_may_be_the_part() -> None:
    task, kinds = task_of("rms_norm"), set()
    for seed in range(12):
        for probe in plan_of("rms_norm", cpu=True, seed=seed):
            call = inputs.call_of(task, probe)
            if probe.layout and len(call.shapes) > 1:
                longer = inputs.buffer_shapes(call, probe)
                kinds.add(tuple(longer[name] != shape for name, shape in call.shapes.items()))
    assert kinds == {(True, True), (True, False), (False, True)}


def test_on_a_cpu_many_rows_are_tried_now_and_then_in_any_number() -> None:
    found = [
        max(p.dims["tokens"] for p in plan_of("silu_and_mul", cpu=True, seed=seed) if p.hidden) for seed in range(120)
    ]
    many = [count for count in found if count > 127]
    assert 4 <= len(many) <= 30
    assert min(many) < 300 < 600 < max(many)


@pytest.mark.parametrize("name", NAMES)
def test_on_a_cpu_widths_lie_between_all_powers_of_two(name: str) -> None:
    task = task_of(name)
    width = {"rms_norm": "hidden", "silu_and_mul": "inter", "softmax": "cols"}[name]
    low, high, step = task["hidden"][width]
    seen: set[int] = set()
    for seed in range(8):
        probes = [p for p in plan_of(name, cpu=True, seed=seed) if p.why == f"{width} {p.dims[width]}, in no case"]
        widths = {p.dims[width] for p in probes if p.distribution == "normal"}
        assert all(low <= value <= high and (value - low) % step == 0 for value in widths)
        for first, last in row_counts.octaves(low, high):
            assert any(first <= value <= last for value in widths) or last - first < step, (seed, first)
        seen |= widths
    assert len(seen) > 30, "they are drawn"


def test_calls_at_the_width_of_a_case_stand_in_for_narrow_ones() -> None:
    probes = plan_of("rms_norm", cpu=True)
    standing_in = [p for p in probes if p.unless is not None]
    assert standing_in == probes[-len(standing_in) :]
    widths = {case["dims"]["hidden"] for case in task_of("rms_norm")["cpu_cases"]}
    for probe in standing_in:
        narrow = probes[probe.unless or 0]
        assert (probe.form, probe.dims["tokens"], probe.leading) == (narrow.form, narrow.dims["tokens"], narrow.leading)
        assert narrow.unless is None
        assert probe.dims["hidden"] in widths


def test_a_case_in_16_bits_alone_gets_the_fp32_magnifier() -> None:
    task = task_of("rms_norm")
    cases = [case for case in task["cases"] if case["dtype"] == "bfloat16"][:3]
    magnified = [probe for probe in inputs.plan(task, cases, 3, cpu=False) if probe.dtype == "float32"]
    assert magnified
    assert all(probe.may_raise and probe.gating for probe in magnified)


@pytest.mark.parametrize("name", NAMES)
def test_relations_hold(name: str) -> None:
    task, probes = task_of(name), plan_of(name, cpu=True)
    oracle = Oracle(task["path"], task["sha256"])

    def made(index: int) -> dict[str, Tensor]:
        return inputs.materialise(task, probes, index, oracle.make_inputs)

    seen = set()
    for index, probe in enumerate(probes):
        if probe.base is None:
            continue
        seen.add(probe.relation)
        base, now = made(probe.base), made(index)
        first = next(iter(base))
        assert {k: v.dtype for k, v in base.items()} == {k: v.dtype for k, v in now.items()}
        if probe.relation == "same_values":
            assert all(torch.equal(base[k], now[k]) for k in base)
        elif probe.relation == "new_values":
            assert all((base[k] != now[k]).double().mean() > 0.9 for k in base)
        elif probe.relation == "sparse":
            assert all(1 <= int((base[k] != now[k]).sum()) <= 6 for k in base)
        elif probe.relation == "rolled":
            assert all(torch.equal(base[k].sort(-1).values, now[k].sort(-1).values) for k in base)
            assert not torch.equal(base[first], now[first])
        elif probe.relation == "other_argument":
            assert torch.equal(base[first], now[first])
            assert all(not torch.equal(base[k], now[k]) for k in base if k != first)
        elif probe.relation == "row":
            assert all(torch.equal(base[k][:1], now[k]) for k in base)
    assert {"new_values", "sparse", "same_values", "rolled"} <= seen


def test_flushing_widens_the_allowance_by_what_it_moves() -> None:
    x = torch.tensor([[1e-39, 1.0]])
    assert inputs.flushed({"x": x})["x"].tolist() == [[0.0, 1.0]]
    one, other = x.double() * 1000, inputs.flushed({"x": x})["x"].double() * 1000
    mag = torch.zeros_like(one)
    wide = inputs.allow_flush({"y": (one, mag)}, {"y": (other, mag)}, 2.0**-24)["y"][1]
    assert wide is not None
    assert float(wide[0, 0]) * 2.0**-24 == pytest.approx(1e-36, rel=1e-3)
    assert float(wide[0, 1]) == 0.0


def test_call_of_a_probe_has_its_shapes() -> None:
    task = task_of("rms_norm")
    probe = replace(plan_of("rms_norm", cpu=True)[0], dims={"tokens": 3, "hidden": 160})
    call = inputs.call_of(task, probe)
    assert isinstance(call, Call)
    assert call.shapes["x"] == (3, 160)
    state = inputs.state_of(task, call, 5)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {"weight": (160,)}
    assert torch.equal(state["weight"], inputs.state_of(task, call, 5)["weight"])
