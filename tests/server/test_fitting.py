from __future__ import annotations

import random
from typing import Any

import pytest

from fk_core.records.job import JobState, JobStatus
from fk_core.records.report import CaseReport, Evidence, Outcome, ValidateReport, ValidateRequest
from fk_server.answers import ANSWER_CHARACTERS, answer, size
from fk_server.fitting import fit_envelope, fit_list
from tests.server.fakes import huge


def _envelope(report: ValidateReport) -> dict[str, Any]:
    status = JobStatus(status=JobState.COMPLETED, job_id="j", attempt_id="a", result=report.model_dump(mode="json"))
    return status.model_dump(mode="json")


def test_a_small_report_is_not_touched() -> None:
    report = ValidateReport(op="x", level=1, outcome=Outcome.PASSED, attempt_id="a")
    assert fit_envelope(_envelope(report)) == _envelope(report)


def test_failing_cases_come_first_in_a_report_that_needs_no_cut() -> None:
    outcomes = [Outcome.PASSED, Outcome.NOT_RUN, Outcome.PASSED, Outcome.WRONG_VALUES, Outcome.NOT_RUN]
    cases = [CaseReport(id=f"case{i}", outcome=outcome) for i, outcome in enumerate(outcomes)]
    report = ValidateReport(op="x", level=1, outcome=Outcome.WRONG_VALUES, attempt_id="a", cases=cases)
    fitted = fit_envelope(_envelope(report))
    assert "cut" not in fitted["result"]
    assert [case["id"] for case in fitted["result"]["cases"]] == ["case3", "case1", "case4", "case0", "case2"]


def test_a_huge_one_fits_and_still_is_an_envelope() -> None:
    fitted = fit_envelope(_envelope(huge(ValidateRequest(op="x", source=""), "a")))
    assert size(fitted) <= ANSWER_CHARACTERS
    JobStatus.model_validate(fitted)
    answer(fitted)


@pytest.mark.parametrize("seed", range(30))
def test_reports_of_any_size_fit_and_count_what_is_missing(seed: int) -> None:
    draw = random.Random(seed)
    outcomes = [Outcome.PASSED, Outcome.WRONG_VALUES, Outcome.NOT_RUN]
    cases = [
        CaseReport(id=f"case{i}", outcome=draw.choice(outcomes), reason="r" * draw.choice([0, 10, 3000]), speedup=1.0)
        for i in range(draw.choice([0, 1, 10, 60, 500]))
    ]
    report = ValidateReport(
        op="x",
        level=1,
        outcome=Outcome.WRONG_VALUES,
        attempt_id="a",
        summary="s" * draw.choice([0, 100, 20_000]),
        cases=cases,
        evidence=[Evidence(kind="k", what="w" * draw.choice([1, 5000]))] * draw.choice([0, 3, 100]),
        warnings=["w" * draw.choice([1, 5000])] * draw.choice([0, 3, 200]),
        log_tail="\u20ac" * draw.choice([0, 100_000]),
    )
    fitted = fit_envelope(_envelope(report))
    assert size(fitted) <= ANSWER_CHARACTERS
    kept = fitted["result"]["cases"]
    if "cases_total" in fitted["result"]:
        assert fitted["result"]["cases_total"] == len(cases)
        assert len(kept) + fitted["result"]["cases_left_out"] == len(cases)
        assert fitted["result"]["evidence_total"] == len(report.evidence)
        ranks = [{"PASSED": 2, "NOT_RUN": 1}.get(case["outcome"], 0) for case in kept]
        assert ranks == sorted(ranks)
    else:
        assert len(kept) == len(cases)
    if any(case.outcome is Outcome.WRONG_VALUES for case in cases):
        assert any(case["outcome"] == "WRONG_VALUES" for case in kept)


def test_lists_say_how_many_items_did_not_fit() -> None:
    fitted = fit_list({"ops": [{"name": "x" * 50}] * 1000}, "ops")
    assert size(fitted) <= ANSWER_CHARACTERS
    assert fitted["left_out"] + len(fitted["ops"]) == 1000
    assert fit_list({"ops": [1, 2]}, "ops") == {"ops": [1, 2], "left_out": 0}


def test_an_answer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        answer({"x": "y" * ANSWER_CHARACTERS})
