"""What the wrong elements of an output have in common, in words that lead to the line that is wrong."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MANY = 0.999
_SAMPLE = 65536


@dataclass(frozen=True)
class Explanation:
    first: dict[str, Any]
    """``index``, ``expected``, ``got``, ``note``; a value that is not finite is None and ``note`` says which."""
    share: float
    pattern: str
    nonfinite: bool
    """Some wrong element is NaN or infinite where the oracle is finite, or the other way round."""


def explain(wrong: Tensor, got: Tensor, ref: Tensor, *, what: str = "wrong") -> Explanation:
    """Look at a mask with at least one true element. Slow path: it may wait for the device many times."""
    flat = wrong.reshape(-1)
    position = int(torch.nonzero(flat)[0]) if flat.numel() <= _SAMPLE else _first(flat)
    count = int(flat.sum())
    share = count / flat.numel()
    chosen = _sample(flat, count)
    seen, right = got.reshape(-1)[chosen].double(), ref.reshape(-1)[chosen].double()
    nonfinite = bool((seen.isfinite() != right.isfinite()).any())
    words = [_places(wrong, count, what), _values(seen, right), _where_by_value(flat, ref, right, share)]
    return Explanation(
        first=mismatch(position, tuple(got.shape), got.reshape(-1)[position], ref.reshape(-1)[position]),
        share=share,
        pattern="; ".join(word for word in words if word),
        nonfinite=nonfinite,
    )


def _first(flat: Tensor) -> int:
    """Position of the first true element: argmax of a boolean need not be the first one on every device."""
    for start in range(0, flat.numel(), 1 << 24):
        part = flat[start : start + (1 << 24)]
        if bool(part.any()):
            order = torch.arange(part.numel(), device=part.device)
            return start + int(torch.where(part, order, part.numel()).min())
    raise ValueError("nothing is wrong")


def _sample(flat: Tensor, count: int) -> Tensor:
    """Positions of wrong elements: all of them, or evenly spread ones where there are many."""
    if count <= _SAMPLE or flat.numel() <= 16 * _SAMPLE:
        positions = flat.nonzero().reshape(-1)
    else:
        stride = max(1, flat.numel() // (8 * _SAMPLE)) | 1  # odd, so that it walks over all columns
        tried = torch.arange(0, flat.numel(), stride, device=flat.device)
        positions = tried[flat[tried]]
        if not positions.numel():
            positions = flat.nonzero().reshape(-1)
    return positions[:: max(1, positions.numel() // _SAMPLE)]


def mismatch(position: int, shape: tuple[int, ...], got: Tensor, ref: Tensor) -> dict[str, Any]:
    """One element, by its position in row-major order, as plain values."""
    index, rest = [], position
    for size in reversed(shape):
        index.append(rest % size)
        rest //= size
    values: dict[str, Any] = {"index": index[::-1], "note": ""}
    notes = []
    for key, value in (("expected", ref), ("got", got)):
        number = float(value) if value.dtype.is_floating_point else int(value)
        if math.isfinite(number):
            values[key] = number
        else:
            values[key] = None
            notes.append(f"{key} is {'NaN' if math.isnan(number) else '-inf' if number < 0 else 'inf'}")
    values["note"] = "; ".join(notes)
    return values


def _places(wrong: Tensor, count: int, what: str) -> str:
    """Rows and columns."""
    total = wrong.numel()
    if count == total:
        return f"all elements {what}"
    if count == 1:
        return f"a single element {what}"
    width = wrong.shape[-1] if wrong.dim() else 1
    table = wrong.reshape(-1, width)
    rows, columns = table.any(dim=1), table.any(dim=0)
    row_list, column_list = rows.nonzero().reshape(-1).tolist(), columns.nonzero().reshape(-1).tolist()
    rows_said = _run(row_list, table.shape[0], "row")
    columns_said = _run(column_list, width, "column")
    filled = count / (len(row_list) * len(column_list))
    parts = [part for part in (rows_said, columns_said) if part]
    if not parts or filled < 0.2:
        return f"{count} of {total} elements {what}, scattered"
    if filled >= 0.5:
        return " and ".join(parts)
    return " and ".join(parts) + f" ({filled:.0%} of the elements there)"


def _run(hit: list[int], total: int, noun: str) -> str:
    """Say which of ``total`` rows or columns are hit; empty if nearly all are, or without order."""
    if total == 1 or len(hit) >= _MANY * total:
        return ""
    first, last, count = hit[0], hit[-1], len(hit)
    if count == 1:
        place = f"the last {noun}" if first == total - 1 else f"the first {noun}" if first == 0 else f"only {noun}"
        return f"{place} ({first} of {total})"
    steps = {b - a for a, b in itertools.pairwise(hit)}
    if steps == {1}:
        if last == total - 1:
            return f"the last {count} of {total} {noun}s"
        if first == 0:
            return f"the first {count} of {total} {noun}s"
        return f"{noun}s {first} to {last} of {total}"
    if len(steps) == 1:
        step = steps.pop()
        return f"every {_ordinal(step)} {noun} from {noun} {first}"
    if min(steps) >= 1 and last - first + 1 <= 0.25 * total:
        return f"only among {noun}s {first} to {last} of {total}"
    modulus = _period(hit, total)
    if modulus:
        return f"{noun}s {modulus[1]} to {modulus[2]} of every {modulus[0]}"
    return "" if count > 0.5 * total else f"{count} of {total} {noun}s, without order"


def _period(hit: list[int], total: int) -> tuple[int, int, int] | None:
    """A power-of-two period in which the hits fill one contiguous part, as a tile with a wrong tail does."""
    period = 4
    while period <= total // 2:
        inside = sorted({position % period for position in hit})
        dense = inside[-1] - inside[0] + 1 == len(inside)
        if dense and len(inside) <= period // 2 and len(hit) >= 0.9 * len(inside) * (total // period):
            return period, inside[0], inside[-1]
        period *= 2
    return None


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _values(seen: Tensor, right: Tensor) -> str:
    """What stands at the wrong places."""
    if bool(seen.isnan().all()):
        return "all of them NaN"
    if bool(seen.isinf().all()):
        return "all of them infinite"
    if seen.numel() > 1 and bool((seen == seen[0]).all()):
        value = float(seen[0])
        if value == 0.0:
            return "all of them zero, as if never written"
        return f"all of them {value:.6g}" + (", as memory that was never written" if abs(value) > 1e37 else "")
    usable = seen.isfinite() & right.isfinite() & (right != 0)
    if int(usable.sum()) < 8:
        return ""
    ratio = (seen[usable] / right[usable]).sort().values
    low, middle, high = (float(ratio[int(ratio.numel() * share)]) for share in (0.1, 0.5, 0.9))
    if abs(high - low) <= 0.02 * abs(middle) and abs(middle - 1) > 1e-6:
        if abs(middle + 1) < 1e-3:
            return "the sign is wrong"
        if abs(middle - 1) < 0.01:
            return f"off by about {middle - 1:+.2g} of the expected value"
        return f"about {middle:.4g} times the expected value"
    return ""


def _where_by_value(flat: Tensor, ref: Tensor, right: Tensor, share: float) -> str:
    """Whether the wrong elements are those whose expected value is large, small, negative or positive."""
    if share > 0.9 or right.numel() < 8 or not ref.dtype.is_floating_point:
        return ""
    stride = max(1, ref.numel() // (8 * _SAMPLE)) | 1
    every = slice(0, None, stride)
    good = ref.reshape(-1)[every][~flat[every]].double()
    good, bad = good[good.isfinite()], right[right.isfinite()]
    if good.numel() < 8 or bad.numel() < 8:
        return ""
    if bool((bad < 0).all()) and float((good < 0).double().mean()) < 0.9:
        return "only where the expected value is negative"
    if bool((bad > 0).all()) and float((good > 0).double().mean()) < 0.9:
        return "only where the expected value is positive"
    good, bad = good.abs().sort().values, bad.abs().sort().values
    least, most = float(bad[int(0.02 * bad.numel())]), float(bad[int(0.98 * (bad.numel() - 1))])
    if least >= float(good[int(0.98 * (good.numel() - 1))]):
        return f"only where the expected value is large (above {least:.4g})"
    if most <= float(good[int(0.02 * good.numel())]):
        return f"only where the expected value is small (below {most:.4g})"
    return ""
