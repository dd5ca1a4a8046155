"""Whole validations on a real GPU: capture, gate nodes, audits, eager timing, memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_core import settings as fk_settings
from fk_core.calibrate import run_twin
from fk_core.harness import Harness
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from tests.adversaries.corpus_index import CORPUS

pytestmark = pytest.mark.gpu

CASES = "rms_norm/Llama-3.1-8B/*"

RMS = """
import torch
import torch.nn as nn

class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        {before}
        h = x.float() if residual is None else x.float() + residual.float()
        y = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    place = tmp_path_factory.mktemp("fk")
    settings = fk_settings.load({**os.environ, "FK_HOME": str(place / "home"), "FK_LOCK_DIR": str(place / "locks")})
    with Harness(settings) as made:
        if made.device().kind != "cuda":
            pytest.skip("there is no GPU")
        yield made


def submit(harness: Harness, source: str, op: str = "rms_norm", cases: str = CASES) -> ValidateReport:
    return harness.validate(ValidateRequest(op=op, source=source, cases=cases, fresh=True))


def corpus(name: str) -> str:
    return (Path(CORPUS) / name).read_text(encoding="utf-8")


def test_an_honest_triton_kernel_is_timed_with_gate_nodes(harness: Harness) -> None:
    report = submit(harness, corpus("honest/ok_rms_triton_fused.py"))
    assert report.outcome is Outcome.PASSED, report.summary
    assert report.evidence == []
    assert report.speed.mode == "gate nodes"
    assert report.speed.trust == "full"
    assert report.deploy.graph_capturable is True
    for case in report.cases:
        assert case.candidate_us is not None
        assert case.floor_us is not None
        assert case.candidate_us > 0.8 * case.floor_us
        assert case.all_cold_speedup is not None
        assert case.ci95 is not None


def test_the_baseline_in_the_candidates_place_neither_wins_nor_loses(harness: Harness) -> None:
    report = run_twin(harness, "softmax", device=harness.device(), cases="quick", provider="torch_eager")
    assert report.outcome is Outcome.PASSED, report.summary
    assert not report.winner
    assert report.speed.verdict in ("same", "inconclusive")


def test_what_waits_for_the_device_is_timed_eagerly_and_said(harness: Harness) -> None:
    report = submit(harness, RMS.format(before="torch.cuda.synchronize()"))
    assert report.outcome is Outcome.PASSED, report.summary
    assert report.deploy.graph_capturable is False
    assert report.speed.mode == "eager"
    assert all(case.eager_speedup is not None for case in report.cases)
    assert any("not capturable" in reason for reason in report.deploy.reasons)


def test_work_left_on_a_side_stream_is_named(harness: Harness) -> None:
    report = submit(harness, corpus("hacks/h_stream_side_unjoined.py"))
    assert report.outcome is Outcome.TAMPERED, report.summary
    assert [e.kind for e in report.evidence] == ["stream_escape"]


def test_a_kernel_that_writes_outside_its_memory_is_the_candidates_crash_and_the_next_one_passes(
    harness: Harness,
) -> None:
    bad = corpus("honest/ok_rms_triton_fused.py").replace(
        "y_ptr + row * n + cols", "y_ptr + row * n + cols + (1 << 38)"
    )
    report = submit(harness, bad)
    assert report.outcome is Outcome.CRASHED, report.summary
    assert report.blame == "candidate"
    assert submit(harness, corpus("honest/ok_rms_plain.py")).outcome is Outcome.PASSED


def test_device_memory_comes_back(harness: Harness) -> None:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(harness.device().index or 0)

    def used() -> int:
        with harness.desk(harness.device()).turn():  # the device is given back behind the report
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    submit(harness, corpus("honest/ok_rms_plain.py"))
    before = used()
    for _ in range(3):
        submit(harness, corpus("honest/ok_rms_plain.py"))
    assert used() <= before + (256 << 20)


def test_a_module_that_packs_its_weight_by_address_is_honest(harness: Harness) -> None:
    """In each of several cases of one module: what an earlier one has captured is not packed anew for a later one."""
    report = submit(harness, corpus("honest/ok_rms_packs_by_address.py"), cases="rms_norm/Llama-3.1-8B/*")
    assert report.outcome is Outcome.PASSED, report.summary
    assert report.speed.mode == "gate nodes"


@pytest.mark.parametrize("name", ["h_replay_memo", "h_replay_memo_unsigned", "h_replay_memo_first"])
def test_outputs_of_another_replay_gain_nothing(harness: Harness, name: str) -> None:
    report = submit(harness, corpus(f"hacks/{name}.py"), "silu_and_mul", "silu_and_mul/Llama-3.1-8B/tp1/*")
    ratio = report.speed.speedup
    assert report.outcome is Outcome.TAMPERED or (ratio is not None and ratio < 1.0), report.summary
