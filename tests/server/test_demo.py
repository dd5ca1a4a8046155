"""The demo over a real client and a scripted server: it must also notice a harness that finds everything right."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import anyio
import pytest
from mcp import StdioServerParameters
from rich.console import Console

from fk_server import demo
from tests.server.wire_client import REPOSITORY


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    server = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "tests.server.serve_fake", str(home)],
        env={"PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
    )
    monkeypatch.setattr(demo, "own_server", lambda: server)
    return home


def test_all_as_expected(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["as_expected"]
    assert [verdict["outcome"] for verdict in found["verdicts"]] == ["PASSED", "WRONG_VALUES", "TAMPERED"]
    assert found["verdicts"][1]["first_mismatch"]["index"] == [0, 3]
    assert found["verdicts"][2]["evidence"]


def test_a_blind_harness_is_noticed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "blind").touch()
    assert demo.main(["--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [verdict["as_expected"] for verdict in found["verdicts"]] == [True, False, False]


def test_a_server_that_does_not_start_is_told_in_one_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "own_server", lambda: StdioServerParameters(command="false", args=[]))
    assert demo.main(["--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["hint"]) == ("harness_fault", "Run `fk doctor`")


def test_an_error_inside_the_client_keeps_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "OP", "absent")
    assert demo.main(["--json"]) == 3
    shown = capsys.readouterr()
    assert "no operator 'absent'" in json.loads(shown.out)["error"]["message"]
    assert "Traceback" not in shown.err


def test_people_see_the_verdicts(home: Path) -> None:
    shown = io.StringIO()
    anyio.run(demo.run, Console(file=shown, width=160), demo.own_server())
    text = shown.getvalue()
    for word in (
        "PASSED",
        "WRONG_VALUES",
        "TAMPERED",
        "y[0, 3] is 1.5, expected 1.0",
        "time.perf_counter was replaced",
    ):
        assert word in text
    assert "All as expected" in text


def test_the_candidates_are_there() -> None:
    for candidate in demo.CANDIDATES:
        source = (demo._CANDIDATES / candidate.file).read_text(encoding="utf-8")
        compile(source, candidate.file, "exec")
        assert "class RMSNorm" in source
