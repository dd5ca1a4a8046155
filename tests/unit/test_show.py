"""What people see: ids that can be copied whatever the width, and intervals that show how narrow they are."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fk_core import show, stubs
from fk_core.catalog import Catalog
from fk_core.records.device import Check, Device, DeviceStatus, DoctorReport, GpuStatus, Holder
from fk_core.records.listing import OpsList, OpSummary
from fk_core.records.report import (
    CaseReport,
    Deploy,
    Evidence,
    Machine,
    Mismatch,
    Outcome,
    Speed,
    ValidateReport,
)
from fk_core.records.task import CaseSpec
from fk_core.settings import Timing
from fk_core.stopping import Estimate
from fk_core.tables import Rows
from fk_core.timings import CaseTiming
from fk_core.verdict import Decision, case_report, summary
from fk_server import demo

WIDTHS = (30, 60, 80, 90, 100, 120, 200)
CATALOG = Catalog()
CASES = [case for name in CATALOG.names() for case in CATALOG.get(name).cases]
UUID = "GPU-6f0f3b4e-7e54-4a2b-9f0d-6f6f2f6f6f6f"


def drawn(what: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(what, crop=False)
    return out.getvalue()


def operators() -> OpsList:
    names = ["rms_norm", "a_rather_long_operator_name_of_a_model"]
    return OpsList(
        ops=[
            OpSummary(
                name=name,
                level=1,
                summary="",
                entries=["RMSNorm", "GemmaRMSNorm"],
                models=[case.model for case in CASES],
                cases=11,
                baselines_found=["torch_compile", "torch_eager"],
            )
            for name in names
        ],
        notes=["a note"],
    )


def judged() -> ValidateReport:
    cases = [
        CaseReport(
            id=case.id,
            outcome=Outcome.PASSED,
            candidate_us=2530.69,
            baseline_us=24.03,
            floor_us=2.01,
            verdict="slower",
            speedup=0.00949,
            ci95=(0.00906, 0.00995),
        )
        for case in CASES
    ]
    return ValidateReport(
        op="an_op", level=1, outcome=Outcome.PASSED, cases=cases, attempt_id="a-20261129-231435-bhze1b"
    )


def devices() -> GpuStatus:
    device = Device(kind="cuda", uuid=UUID, name="NVIDIA H200 with a name")
    holders = [Holder(pid=4711, mode="shared", purpose="validate rms_norm")]
    return GpuStatus(devices=[DeviceStatus(device=device, holders=holders, foreign=["python 4712"])], lock_dir="/var/x")


def checks() -> DoctorReport:
    return DoctorReport(checks=[Check(name="a check", state="warn", found="much " * 40, todo="do " * 40)], sandbox="x")


SHOWN = {
    "ops": (show.ops(operators()), [op.name for op in operators().ops]),
    "stub": (
        show.stub_notes(stubs.render(CATALOG.get("softmax"), "cuda")),
        [case.id for case in CATALOG.get("softmax").cases],
    ),
    "report": (show.report(judged()), [case.id for case in CASES]),
    "gpus": (show.gpus(devices()), [UUID]),
    "doctor": (show.doctor(checks()), ["a check"]),
    "demo": (
        demo._table(
            [
                {"file": c.file, "what": c.what, "expected": c.expected, "outcome": "PASSED", "as_expected": True}
                | {"speed": None, "seconds": 3.0}
                for c in demo.CANDIDATES
            ]
        ),
        [candidate.file for candidate in demo.CANDIDATES],
    ),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_ids_are_whole_at_every_width(name: str, width: int) -> None:
    what, ids = SHOWN[name]
    lines = drawn(what, width).splitlines()
    for wanted in ids:
        assert any(wanted in line for line in lines), wanted
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_table_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    table = Rows("name", "number", "words", "more words", wide=("words", "more words"))
    table.add("an_id_of_some_length", "1.25", "several words of which one is extraordinarily long", "x")
    table.add("other", "2", "", "a good many words that need several lines in every table of this width")
    shown = drawn(table, width)
    for word in ("an_id_of_some_length", "extraordinarily", "1.25", "other", "width"):
        assert word in shown
    assert all(len(line) <= max(width, len("an_id_of_some_length")) for line in shown.splitlines())


def test_a_table_in_a_narrow_terminal_can_be_read() -> None:
    lines = drawn(show.report(judged()), 80).splitlines()
    at = lines.index(CASES[0].id)
    assert lines[at + 1].strip() == "outcome: PASSED; us: 2530.69; baseline us: 24.03 (floor 2.01); speedup:"
    assert lines[at + 2].strip() == "slower 0.00949 (0.00906 to 0.00995)"
    assert lines[at + 2].startswith("    s")


@pytest.mark.parametrize(
    ("interval", "ratio", "told"),
    [
        ((0.99961, 1.00038), 1.0, "same 1.00000 (0.99961 to 1.00038)"),
        ((1.10, 1.25), 1.17, "same 1.170 (1.100 to 1.250)"),
        ((0.002711, 0.003003), 0.00286, "same 0.00286 (0.00271 to 0.00300)"),
        ((1.5, 1.5), 1.5, "same 1.500 (1.500 to 1.500)"),
    ],
)
def test_an_interval_shows_how_narrow_it_is(interval: tuple[float, float], ratio: float, told: str) -> None:
    case = CaseReport(id="x/y", outcome=Outcome.PASSED, verdict="same", speedup=ratio, ci95=interval)
    report = ValidateReport(op="x", level=1, outcome=Outcome.PASSED, cases=[case])
    assert told in drawn(show.report(report), 200)


@pytest.mark.parametrize(
    ("interval", "told"),
    [
        ((0.99961, 1.00038), "1.00012x against torch (95% interval 0.99961 to 1.00038)"),
        ((0.00271, 0.00334), "1.00012x against torch (95% interval 0.00271 to 0.00334)"),
        ((0.95, 1.05), "1.000x against torch (95% interval 0.950 to 1.050)"),
        ((1.0, 1.0), "1.000x against torch (95% interval 1.000 to 1.000)"),
        ((1.0, 1.0 + 1e-15), "1.000120000x against torch (95% interval 1.000000000 to 1.000000000)"),
    ],
)
def test_the_summary_shows_how_narrow_the_interval_is(interval: tuple[float, float], told: str) -> None:
    speed = Speed(verdict="same", speedup=1.00012, ci95=interval, baseline="torch", trust="full")
    assert told in summary("op", Outcome.PASSED, "", Decision(speed, False, "", True), 4)


def test_the_command_does_not_cut_at_the_width_of_the_terminal(tmp_path: Path) -> None:
    import subprocess
    import sys

    environ = {**os.environ, "FK_HOME": str(tmp_path), "FK_LOCK_DIR": str(tmp_path / "locks"), "COLUMNS": "40"}
    command = [sys.executable, "-m", "fk_core.cli", "stub", "softmax"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    for case in CATALOG.get("softmax").cpu_cases:
        assert case.id in done.stderr


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("name", CATALOG.names())
def test_code_is_neither_wrapped_nor_padded(name: str, width: int) -> None:
    source = stubs.render_source(CATALOG.get(name))
    assert drawn(show.code(source), width) == source


def failed(outcome: Outcome, summary: str, **more: Any) -> str:
    mismatch = Mismatch(output="y", index=[0, 0], expected=0.1234567890123, got=1.0, share_wrong=1.0)
    case = CaseReport(id="op/case", outcome=outcome, reason="y: first wrong at [0, 0]", first_mismatch=mismatch)
    report = ValidateReport(op="op", level=1, outcome=outcome, summary=summary, cases=[case], **more)
    return drawn(show.report(report), 200)


def test_the_text_of_a_stub_shows_what_each_case_constructs() -> None:
    told = drawn(show.stub_notes(stubs.render(CATALOG.get("softmax"), "cpu")), 200)
    rows = [line for line in told.splitlines() if "/tp1/" in line]
    assert ["Softmax(dim=1)(x)" in row for row in rows] == ["gpt-oss" in row for row in rows]
    assert sum("Softmax()(x)" in row for row in rows) == len(rows) - 1


def test_what_the_summary_says_is_not_said_again() -> None:
    told = failed(Outcome.WRONG_VALUES, "WRONG_VALUES: y: first wrong at [0, 0]", winner_reason="not correct")
    assert "Failed: op/case\n" in told
    assert "0.123" not in told
    assert "Winner: no, not correct\n" in told
    assert "expected 0.1234567890123" in failed(Outcome.WRONG_VALUES, "WRONG_VALUES")


def test_the_text_says_why_a_word_is_inconclusive_once() -> None:
    why = "changes of less than about 20% can't be told from the machine's own error"
    other = "too few rounds or layouts for an interval"
    unclear = [
        CaseReport(id=f"op/{name}", outcome=Outcome.PASSED, verdict="inconclusive", speedup=1.1, reason=reason)
        for name, reason in {"a": why, "b": other, "c": other}.items()
    ]
    speed = Speed(verdict="inconclusive", speedup=1.1, baseline="eager", trust="indicative", reason=why)
    report = ValidateReport(op="op", level=1, outcome=Outcome.PASSED, cases=unclear, speed=speed)
    told = drawn(show.report(report), 200)
    assert f"against eager; trust: indicative\nInconclusive: {why}\n" in told
    assert told.count(why) == 1
    assert f"Inconclusive, b and 1 more: {other}\n" in told


def test_of_many_reasons_only_some_are_shown() -> None:
    unclear = [
        CaseReport(
            id=f"op/{n}", outcome=Outcome.PASSED, verdict="inconclusive", speedup=1.1, reason=f"{n} us is too fast"
        )
        for n in range(9)
    ]
    told = drawn(show.report(ValidateReport(op="op", level=1, outcome=Outcome.PASSED, cases=unclear)), 200)
    assert told.count("is too fast") == 4
    assert "Inconclusive, and 5 more cases for other reasons, which the report as JSON has\n" in told


def test_short_calls_are_told_together() -> None:
    """However long each of them takes."""
    unclear = []
    for n, us in enumerate((1.0, 1.1, 1.2)):
        measured = CaseTiming(
            CaseSpec.model_construct(id=f"op/{n}", calls=1),
            estimate=Estimate(0.015, 0.001, 12, 12),
            candidate_us=us,
            baseline_us=1.015 * us,
        )
        unclear.append(case_report(CaseReport(id=f"op/{n}", outcome=Outcome.PASSED), measured, Timing(), 0.003))
    told = drawn(show.report(ValidateReport(op="op", level=1, outcome=Outcome.PASSED, cases=unclear)), 200)
    assert "Inconclusive, 0 and 2 more: the calls are short, and changes of less than 20 ns a call" in told


def test_the_text_names_sandbox_domain_and_deploy_flags() -> None:
    deploy = Deploy(graph_capturable=True, syncs=False, domain_share=0.25)
    report = ValidateReport(
        op="op", level=1, outcome=Outcome.PASSED, deploy=deploy, machine=Machine(device="cpu", sandbox="namespaces")
    )
    told = drawn(show.report(report), 200)
    assert "Sandbox: namespaces; its domain: 0.25 of the models' calls\n" in told
    assert "Deploy: graph_capturable yes, syncs no; not known: compile_safe, allocates, pdl" in told


@pytest.mark.parametrize(("reason", "count"), [("", 1), ("others were busy, so nothing is called", 1)])
def test_the_text_says_once_how_busy_others_were(reason: str, count: int) -> None:
    machine = Machine(device="cpu", crowd="others were busy")
    speed = Speed(verdict="inconclusive", speedup=1.1, reason=reason)
    told = drawn(
        show.report(ValidateReport(op="op", level=1, outcome=Outcome.PASSED, machine=machine, speed=speed)), 200
    )
    assert told.count("others were busy") == count


def test_a_case_that_the_baseline_takes_is_shown_as_that() -> None:
    case = CaseReport(id="op/a", outcome=Outcome.PASSED, routed_to_baseline=True, verdict="same", speedup=1.0)
    told = drawn(show.report(ValidateReport(op="op", level=1, outcome=Outcome.PASSED, cases=[case])), 200)
    assert "outside SUPPORTS" in told
    assert "Not on record, 0.00 s" in told


def test_evidence_leaves_what_to_do_to_the_next_steps() -> None:
    evidence = [Evidence(kind="timer", what="a clock was changed", instead="leave clocks alone")]
    told = failed(Outcome.TAMPERED, "TAMPERED", evidence=evidence, next_steps=["leave clocks alone"])
    assert "Evidence (timer): a clock was changed\n" in told
    assert told.count("leave clocks alone") == 1
    assert "changed; instead: leave clocks alone" in failed(Outcome.TAMPERED, "TAMPERED", evidence=evidence)
