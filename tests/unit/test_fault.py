"""What the report says of a wrong output, by what the judge really answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fk_core.child import compare
from fk_core.fault import wrong, wrong_when_timed
from fk_core.records.report import Outcome

PROBE = {"why": "inputs 'normal'", "dims": {"tokens": 2}, "dtype": "bfloat16", "case_id": "op/a"}


def judgement(value: float) -> compare.Judgement:
    ref = torch.ones(2, 4, dtype=torch.float64)
    got = ref.bfloat16()
    got[1, 2] = value
    return compare.judge("y", got, ref, ref, compare.Rule())


def said(value: float) -> dict[str, Any]:
    """As ``TimingDesk`` says it of a timed call."""
    found = judgement(value)
    return {"wrong": 1, "checked": 4, "output": "y", "judgement": found.as_dict(), "limit": 5.0}


@pytest.mark.parametrize(
    ("value", "words"), [(2.0, "; error ratio 2"), (math.nan, "; error ratio of the finite elements 0")]
)
def test_the_first_wrong_element_of_a_timed_call(value: float, words: str) -> None:
    fault = wrong_when_timed(
        Outcome.TAMPERED, "graph_stale", "what was captured is stale", "launch", said(value), "op/a"
    )
    assert fault.reason.startswith("what was captured is stale. y: first wrong at [1, 2]: expected 1, got ")
    assert words in fault.reason
    assert fault.mismatch is not None
    assert fault.mismatch.index == [1, 2]


@pytest.mark.parametrize("value", [2.0, math.nan])
def test_a_timed_call_and_any_other_are_told_alike(value: float) -> None:
    timed = said(value)
    other = timed | {"outcome": judgement(value).outcome, "ok": False}
    what = wrong(other, PROBE).reason.partition(": y: ")[2]
    assert (
        wrong_when_timed(Outcome.TAMPERED, "graph_stale", "stale", "launch", timed, "op/a").reason
        == f"stale. y: {what}"
    )


def test_nothing_more_is_said_where_the_judge_names_no_element() -> None:
    told = {"wrong": 4, "checked": 4}
    assert wrong_when_timed(Outcome.TAMPERED, "graph_stale", "stale", "launch", told, "op/a").reason == "stale"
