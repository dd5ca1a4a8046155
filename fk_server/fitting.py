"""Making answers fit: what the reader needs first stays, the rest is counted and left to a resource."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fk_core.plain import clean
from fk_server.answers import ANSWER_CHARACTERS, size
from fk_server.wording import in_tools

_GOOD = ("PASSED",)
_SHORT_CASE = (
    "id",
    "outcome",
    "reason",
    "routed_to_baseline",
    "candidate_us",
    "baseline_us",
    "verdict",
    "speedup",
    "ci95",
)
_TEXT_STEPS = (1500, 600, 250)
_LIST_STEPS = (12, 6, 3)


def fit_envelope(envelope: dict[str, Any], limit: int = ANSWER_CHARACTERS) -> dict[str, Any]:
    """A job envelope with failing cases first, whose validate report fits: cases whole, then shorter, then counted."""
    envelope = in_tools(clean(envelope))
    result = envelope.get("result")
    if isinstance(result, dict) and result.get("cases"):
        result = {**result, "cases": sorted(result["cases"], key=_rank)}
        envelope = {**envelope, "result": result}
    if size(envelope) <= limit or not isinstance(result, dict):
        return _shorten(envelope, limit)
    result = dict(result)
    attempt_id = envelope.get("attempt_id") or result.get("attempt_id") or ""
    cases = sorted(result.get("cases") or [], key=_urgency)
    by_outcome = Counter(str(case.get("outcome")) for case in cases)
    result["cases_total"] = len(cases)
    result["cases_by_outcome"] = dict(by_outcome)
    result["evidence_total"] = len(result.get("evidence") or [])
    result["cut"] = f"shortened to fit; the whole report is fk://attempts/{attempt_id}/report"
    for text_limit, list_limit in zip(_TEXT_STEPS, _LIST_STEPS, strict=True):
        trimmed = {key: _cut(value, text_limit, list_limit) if key != "cases" else [] for key, value in result.items()}
        frame = {**_cut(envelope, text_limit, list_limit), "result": trimmed}
        if size(frame) <= limit * 3 // 4:
            trimmed["cases"] = _cases_within([_cut(case, text_limit, list_limit) for case in cases], frame, limit)
            trimmed["cases_left_out"] = len(cases) - len(trimmed["cases"])
            return frame
    raise ValueError("a report that does not fit even without its cases")


def _cases_within(cases: list[dict[str, Any]], frame: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """As many cases as fit: failing ones whole, passing ones in their short form, in the order given."""
    room = limit - size(frame) - len(',"cases_left_out":99999')
    kept: list[dict[str, Any]] = []
    for case in cases:
        whole = {key: value for key, value in case.items() if value is not False and value not in (None, "", [])}
        short = {key: value for key, value in whole.items() if key in _SHORT_CASE}
        options = (short,) if case.get("outcome") in _GOOD else (whole, short)
        form = next((option for option in options if size(option) + 1 <= room), None)
        if form is None:
            break
        kept.append(form)
        room -= size(form) + 1
    return kept


def _urgency(case: dict[str, Any]) -> tuple[int, float]:
    """As :func:`_rank`, passing ones from the slowest speedup up."""
    rank, speedup = _rank(case), case.get("speedup")
    return rank, float(speedup) if isinstance(speedup, int | float) and rank == 2 else 0.0


def _rank(case: dict[str, Any]) -> int:
    """Failing cases, then cases that did not run, then passing ones."""
    outcome = case.get("outcome")
    return 2 if outcome in _GOOD else 1 if outcome == "NOT_RUN" else 0


def fit_list(data: dict[str, Any], key: str, limit: int = ANSWER_CHARACTERS) -> dict[str, Any]:
    """An answer whose one long list loses its last items; ``left_out`` says how many."""
    data = in_tools(clean(data))
    items = list(data[key])
    data["left_out"] = 0
    while size(data) > limit and data[key]:
        excess = size(data) - limit
        while data[key] and excess > 0:
            excess -= size(data[key].pop()) + 1
        data["left_out"] = len(items) - len(data[key])
    return _shorten(data, limit)


def _shorten(data: dict[str, Any], limit: int) -> dict[str, Any]:
    for text_limit, list_limit in zip(_TEXT_STEPS, _LIST_STEPS, strict=True):
        if size(data) <= limit:
            break
        data = _cut(data, text_limit, list_limit)
    return data


def _cut(value: Any, text_limit: int, list_limit: int) -> Any:
    """The same value with long strings and lists cut, and the cut said in their place."""
    if isinstance(value, str):
        if len(value) <= text_limit:
            return value
        half = text_limit // 2
        return f"{value[:half]} … [{len(value) - 2 * half} characters cut] … {value[-half:]}"
    if isinstance(value, dict):
        return {key: _cut(item, text_limit, list_limit) for key, item in value.items()}
    if isinstance(value, list):
        kept = [_cut(item, text_limit, list_limit) for item in value[:list_limit]]
        if len(value) > list_limit and all(isinstance(item, str) for item in value):
            kept.append(f"… and {len(value) - list_limit} more")
        return kept
    return value
