"""A candidate is asked for no more than it declares to support, and the cases that it leaves count 1.00."""

from __future__ import annotations

from fk_core.harness import Harness
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest

SOURCE = """
import torch
import torch.nn as nn

SUPPORTS = {supports}


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        if x.shape[-1] != 4096 or x.dtype != torch.bfloat16:
            raise NotImplementedError("only bfloat16 rows of 4096")
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
"""


def submit(harness: Harness, supports: str) -> ValidateReport:
    source = SOURCE.replace("{supports}", supports)
    return harness.validate(ValidateRequest(op="rms_norm", source=source, device="cpu", fresh=True))


def test_what_is_outside_the_declared_domain_is_left_to_the_baseline(harness: Harness) -> None:
    report = submit(harness, '{"hidden": [4096], "tokens": (1, 16384), "dtype": ["bfloat16"]}')
    assert report.outcome is Outcome.PASSED, report.summary
    outside = [c for c in report.cases if "declares" in c.reason]
    assert len(report.cases) == 4
    assert sorted(c.id.split("/")[1] for c in outside) == ["FLUX.1-dev", "gpt-oss-120b"]
    assert all(c.speedup == 1.0 and c.verdict == "same" and c.candidate_us is None for c in outside)
    assert report.deploy.domain_share is not None
    assert 0 < report.deploy.domain_share < 1
    assert report.speed.weighted_speedup is None
    assert not [warning for warning in report.warnings if "SUPPORTS" in warning]


def test_widths_that_are_declared_and_tried_by_nothing_are_told(harness: Harness) -> None:
    report = submit(harness, '{"hidden": [4096, 12345], "tokens": (1, 16384), "dtype": ["bfloat16"]}')
    assert report.outcome is Outcome.PASSED, report.summary
    (told,) = [warning for warning in report.warnings if "SUPPORTS" in warning]
    assert "lists 12345, which no case has" in told


def test_undeclared_means_everything(harness: Harness) -> None:
    report = submit(harness, "None  # not a declaration\ndel SUPPORTS\n_ = {}")
    assert report.outcome is Outcome.CONTRACT_BROKEN


def test_a_domain_without_any_case_or_with_a_hole_is_refused(harness: Harness) -> None:
    for supports, said in (
        ('{"hidden": [123]}', "leaves out every case that was asked for; these have tokens 1, 8, 16, 48; hidden 128,"),
        # Models ask for many more rows of this width; the one case that a CPU judges has 48.
        ('{"hidden": [128], "tokens": (200, 300)}', "the cases judged here have tokens 1, 8, 16, 48; hidden 128,"),
        ('{"hidden": [4096], "tokens": (1, 8)}', "has to cover"),
        ('{"hidden": some_list}', "literal"),
        ('{"dtype": []}', "is empty"),
    ):
        report = submit(harness, supports)
        assert report.outcome is Outcome.CONTRACT_BROKEN
        assert said in report.summary
