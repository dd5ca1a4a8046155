"""Whether an output is right: one rule per kind of output, one judgement per output.

Trusted side only. ``judge`` answers for one output, ``judge_many`` for all outputs of many calls with a single transfer
from the device, ``judge_call`` for a whole call including what may and what must not change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fk_core.child.elementwise import COLUMNS, FP32_UNIT, MAXIMA, Yardstick, chunks, measure, ratios, wrong_mask
from fk_core.child.explain import explain, mismatch
from fk_core.child.measure_kernel import measure_fused

Kind = Literal["float", "integer", "topk", "quantised", "lse"]
Scale = Literal["exact", "ue8m0", "free"]
Pair = tuple[Tensor, Tensor]
RMS_LIMIT = 1.3
"""Root mean square of the error ratios on generic inputs: correct rounding gives 0.58, a quarter of all elements one
ulp off 1.15 (right), statistics from a part of the row 10."""
BASELINE_RMS = 1.4
BASELINE_ROW = 2.5


@dataclass(frozen=True)
class Rule:
    """How one output is judged."""

    kind: Kind = "float"
    limit: float = 5.0
    u: float = FP32_UNIT
    """Unit roundoff of the internals: 2^-24, or 2^-9 where the task declares 16-bit internals."""
    generic: bool = True
    """Values are spread without structure, so that the rms and row-scale tests hold."""
    dtype: torch.dtype | None = None
    """The dtype that the output must have; None takes that of the output for granted."""
    scale: Scale = "exact"
    rms_limit: float = RMS_LIMIT
    row_limit: float = 1.0
    exact: bool = False
    """Float values must be the same, as for copies and caches; also what ``mag=None`` means for kind ``float``."""

    def beside(self, baseline: Judgement) -> Rule:
        """The rule for a candidate where the production baseline, itself right by this rule, was judged as given."""
        if not baseline.ok:
            return self
        return replace(
            self,
            rms_limit=max(self.rms_limit, BASELINE_RMS * (baseline.rms_ratio or 0.0)),
            row_limit=max(self.row_limit, BASELINE_ROW * (baseline.row_scale_ratio or 0.0)),
        )


@dataclass(frozen=True)
class Judgement:
    """What came out for one output. Ratios are None where they have no meaning."""

    name: str
    ok: bool
    outcome: str = ""
    """Empty, or ``WRONG_SHAPE``, ``WRONG_DTYPE``, ``WRONG_VALUES``, ``NON_FINITE``, ``MUTATED``."""
    max_abs_error: float | None = None
    max_error_ratio: float | None = None
    rms_ratio: float | None = None
    """Root mean square of the error ratios."""
    row_scale_ratio: float | None = None
    """Worst bias of a row over its bound."""
    first_mismatch: dict[str, Any] | None = None
    share_wrong: float | None = None
    pattern: str = ""
    ulp_histogram: dict[str, int] = field(default_factory=dict)
    """Elements by distance from the correctly rounded oracle in ulps: ``0``, ``1``, ``2``, ``more``."""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values without NaN or infinities, fit for JSON."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain


@dataclass(frozen=True)
class Item:
    """One output to judge."""

    name: str
    got: Tensor | None
    ref: Tensor
    mag: Tensor | None
    rule: Rule


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def judge(name: str, got: Tensor | None, ref: Tensor, mag: Tensor | None, rule: Rule) -> Judgement:
    """Judge one output against the oracle's ``ref`` (fp64, or integers) and ``mag``; see ``elementwise``."""
    return judge_many([Item(name, got, ref, mag, rule)])[0]


def judge_many(items: Sequence[Item]) -> list[Judgement]:
    """Judge many outputs, waiting for the device once per kind of device and not once per output."""
    return _judge_and_compare(items, ())[0]


def _judge_and_compare(items: Sequence[Item], pairs: Sequence[Pair]) -> tuple[list[Judgement], list[bool]]:
    """Judge outputs, and say of each pair whether any bit differs, in one transfer."""
    done: list[Judgement | None] = []
    differ = [_unlike(*pair) for pair in pairs]
    pending: list[tuple[int, Item, Yardstick, Tensor]] = []
    for index, item in enumerate(items):
        early = _structure(item) or _exact(item)
        done.append(early)
        if early is None:
            assert item.got is not None
            yard = _yardstick(item)
            look = measure_fused if item.got.is_cuda else measure
            pending.append((index, item, yard, look(item.got, item.ref, item.mag, yard)))
    waiting = [(number, flag) for number, flag in enumerate(differ) if isinstance(flag, Tensor)]
    for device in dict.fromkeys([entry[3].device for entry in pending] + [flag.device for _, flag in waiting]):
        entries = [entry for entry in pending if entry[3].device == device]
        flags = [(number, flag) for number, flag in waiting if flag.device == device]
        told = iter(_transferred([entry[3] for entry in entries], [flag for _, flag in flags]))
        for index, item, yard, table in entries:
            rows = [list(itertools.islice(told, table.shape[1])) for _ in range(table.shape[0])]
            done[index] = _conclude(item, yard, rows)
        for number, _ in flags:
            differ[number] = bool(next(told))
    return [entry for entry in done if entry is not None], [bool(flag) for flag in differ]


def _transferred(tables: list[Tensor], flags: list[Tensor]) -> list[float]:
    """The numbers of all tables, then the flags."""
    parts = [table.reshape(-1) for table in tables]
    if flags:
        parts.append(torch.stack(flags).double())
    numbers: list[float] = torch.cat(parts).tolist()
    return numbers


def _unlike(one: Tensor, other: Tensor) -> bool | Tensor:
    """Whether any bit differs; on a GPU a flag there, which nobody has waited for."""
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_cuda:
        return not same_bits(one, other)
    return (bits(one) != bits(other)).any()


def judge_unchanged(name: str, now: Tensor, before: Tensor) -> Judgement:
    """Judge an argument, weight or buffer that has to keep every bit."""
    if now.shape != before.shape or now.dtype != before.dtype:
        note = f"{name} was {_describe(before)} and is now {_describe(now)}"
        return Judgement(name, False, "MUTATED", note=note)
    changed = bits(now) != bits(before)
    if not bool(changed.any()):
        return Judgement(name, True)
    found = explain(changed, now, before, what="changed")
    return Judgement(
        name,
        False,
        "MUTATED",
        first_mismatch=found.first,
        share_wrong=found.share,
        pattern=found.pattern,
        note=f"{name} was changed although the contract does not allow it",
    )


def judge_call(
    outputs: Mapping[str, Tensor | None],
    expected: Mapping[str, tuple[Tensor, Tensor | None]],
    rules: Mapping[str, Rule],
    *,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    mutates: Mapping[str, str],
) -> list[Judgement]:
    """Judge a whole call: returned outputs, ``must`` arguments against the oracle, everything else bit for bit.

    ``expected`` names every output and every ``must`` argument; ``before`` and ``after`` hold the raw arguments,
    weights and buffers. Arguments that ``may`` change are scratch and are not looked at.
    """
    return judge_call_and(outputs, expected, rules, before=before, after=after, mutates=mutates, pairs=())[0]


def judge_call_and(
    outputs: Mapping[str, Tensor | None],
    expected: Mapping[str, tuple[Tensor, Tensor | None]],
    rules: Mapping[str, Rule],
    *,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    mutates: Mapping[str, str],
    pairs: Sequence[Pair],
) -> tuple[list[Judgement], list[bool]]:
    """:func:`judge_call`, and of each of ``pairs`` whether any bit differs, with a single transfer from a GPU."""
    must = [name for name, word in mutates.items() if word == "must"]
    items = [
        Item(name, after[name] if name in must else outputs.get(name), ref, mag, rules[name])
        for name, (ref, mag) in expected.items()
    ]
    kept = [name for name in before if name not in mutates]
    judged, differ = _judge_and_compare(items, [*((after[name], before[name]) for name in kept), *pairs])
    for name, changed in zip(kept, differ, strict=False):
        judged.append(judge_unchanged(name, after[name], before[name]) if changed else Judgement(name, True))
    return judged, differ[len(kept) :]


def bits(tensor: Tensor) -> Tensor:
    """The raw bits as integers, so that NaN equals itself and -0 differs from 0."""
    size = tensor.element_size()
    if tensor.is_complex():
        tensor, size = torch.view_as_real(tensor), size // 2
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[size])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are bitwise equal: repeatability and batch invariance."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _structure(item: Item) -> Judgement | None:
    """Shape and dtype."""
    name, got, ref, rule = item.name, item.got, item.ref, item.rule
    if rule.kind in ("topk", "quantised"):
        raise ValueError(f"outputs of kind {rule.kind} have more than one tensor: use judge_{rule.kind}")
    if got is None:
        return Judgement(name, False, "WRONG_SHAPE", note=f"{name} was not returned; expected shape {list(ref.shape)}")
    if got.shape != ref.shape:
        note = f"{name} has shape {list(got.shape)}; expected {list(ref.shape)}"
        return Judgement(name, False, "WRONG_SHAPE", note=note)
    wanted = rule.dtype
    if wanted is not None and got.dtype != wanted:
        return Judgement(name, False, "WRONG_DTYPE", note=f"{name} is {got.dtype}; expected {wanted}")
    if rule.kind != "integer" and got.dtype.is_floating_point != ref.dtype.is_floating_point:
        return Judgement(name, False, "WRONG_DTYPE", note=f"{name} is {got.dtype}; expected a floating-point output")
    if got.numel() == 0:
        return Judgement(name, True, max_abs_error=0.0, max_error_ratio=0.0, note="empty")
    return None


def _exact(item: Item) -> Judgement | None:
    """Integers, booleans and copies: every element the same."""
    rule, got, ref = item.rule, item.got, item.ref
    assert got is not None
    if not (rule.kind == "integer" or rule.exact or (rule.kind == "float" and item.mag is None)):
        return None
    if got.dtype.is_floating_point:
        wanted = ref.to(got.dtype)
        wrong = ~((got == wanted) | (got.isnan() & wanted.isnan()))
        error = (got.double() - wanted.double()).abs().nan_to_num(0.0, 0.0, 0.0).max()
    else:
        if ref.dtype.is_floating_point or (got.dtype == torch.bool) != (ref.dtype == torch.bool):
            raise ValueError(f"the oracle gives {ref.dtype} for the output {item.name}, which is {got.dtype}")
        wanted = ref.to(torch.int64)
        wrong = got.to(torch.int64) != wanted
        error = (got.double() - wanted.double()).abs().max()
    count, worst = torch.stack([wrong.sum().double(), error]).tolist()
    if not count:
        return Judgement(item.name, True, max_abs_error=worst, max_error_ratio=0.0)
    found = explain(wrong, got, ref)
    outcome = "NON_FINITE" if found.nonfinite else "WRONG_VALUES"
    return Judgement(
        item.name,
        False,
        outcome,
        max_abs_error=worst,
        first_mismatch=found.first,
        share_wrong=found.share,
        pattern=found.pattern,
        note="every element has to be exactly right",
    )


def _yardstick(item: Item) -> Yardstick:
    assert item.got is not None
    rule = item.rule
    return Yardstick(item.got.dtype, rule.limit, rule.u, rule.generic, absolute=rule.kind == "lse")


def _conclude(item: Item, yard: Yardstick, rows: list[list[float]]) -> Judgement:
    total = {name: (max if name in MAXIMA else sum)(row[column] for row in rows) for column, name in enumerate(COLUMNS)}
    rule, got = item.rule, item.got
    assert got is not None
    finite = total["finite"]
    rms = math.sqrt(total["sum_ratio2"] / finite) if finite else None
    worst_row = total["worst_row"] if yard.generic else None
    counted = {key: int(total[f"ulp{key}"]) for key in ("0", "1", "2")}
    common = Judgement(
        item.name,
        True,
        max_abs_error=total["max_abs"],
        max_error_ratio=total["max_ratio"],
        rms_ratio=rms,
        row_scale_ratio=worst_row,
        ulp_histogram=counted | {"more": got.numel() - sum(counted.values())},
        note=_stated(total),
    )
    if total["wrong"]:
        found = explain(wrong_mask(got, item.ref, item.mag, yard), got, item.ref)
        outcome = "NON_FINITE" if total["wrong_nonfinite"] else "WRONG_VALUES"
        return replace(
            common,
            ok=False,
            outcome=outcome,
            first_mismatch=found.first,
            share_wrong=found.share,
            pattern=found.pattern,
        )
    note = pattern = ""
    if yard.generic and rms is not None and rms > rule.rms_limit * (1 + 3 / math.sqrt(finite)):
        pattern, factor = "spread over all elements", _factor(got, item.ref)
        note = (
            f"no single element is far off, but together they are: root mean square of the error ratio {rms:.3g}, "
            f"at most {rule.rms_limit:.3g}; on average they are {factor:.4g} times the expected values: "
            + _cause(factor, got.dtype)
        )
    elif worst_row is not None and worst_row > rule.row_limit:
        pattern = "whole rows scaled"
        note = (
            f"no single element is far off, but a whole row is scaled: its bias is {worst_row:.3g} times what rounding "
            f"can give, at most {rule.row_limit:.3g}; a sum over the row lacks elements or is too coarse"
        )
    if not pattern:
        return common
    first = worst_element(got, item.ref, item.mag, yard)
    return replace(common, ok=False, outcome="WRONG_VALUES", first_mismatch=first, pattern=pattern, note=note)


def _factor(got: Tensor, ref: Tensor) -> float:
    """By least squares, what all expected values were multiplied by."""
    inner = square = 0.0
    for c, r, _ in chunks(got, ref, None):
        both = torch.isfinite(c) & torch.isfinite(r)
        wanted = torch.where(both, r, 0.0)
        inner += float((torch.where(both, c, 0.0) * wanted).sum())
        square += float((wanted * wanted).sum())
    return inner / square if square else 1.0


def _cause(factor: float, dtype: torch.dtype) -> str:
    if abs(factor - 1) > torch.finfo(dtype).eps / 4:
        return "a constant, such as an epsilon or a scale, is not the contract's"
    return "intermediate results are rounded too often or too coarsely"


def worst_element(got: Tensor, ref: Tensor, mag: Tensor | None, yard: Yardstick) -> dict[str, Any]:
    """The element with the largest error ratio, as a ``first_mismatch``: for faults that no single element shows."""
    ratio = torch.cat([ratios(c, r, m, yard)[2] for c, r, m in chunks(got, ref, mag)]).reshape(-1)
    position = int(ratio.argmax())
    found = mismatch(position, tuple(ref.shape), got.reshape(-1)[position], ref.reshape(-1)[position])
    return found | {"worst": True, "note": "the element with the largest error; none breaks the limit alone"}


def _stated(total: Mapping[str, float]) -> str:
    said = []
    if total["nan_matched"]:
        said.append(f"{int(total['nan_matched'])} NaN as in the oracle")
    if total["inf_matched"]:
        said.append(f"{int(total['inf_matched'])} infinities as in the oracle")
    return "; ".join(said)
