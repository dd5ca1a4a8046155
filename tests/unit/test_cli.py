"""``fk`` over a scripted harness: one JSON document on stdout, exit codes, and what people see."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fk_core import __version__, commands
from fk_core.errors import HarnessError, LeaseTimeout
from fk_core.records.device import Check, DoctorReport
from fk_core.records.report import Outcome, ValidateReport, blame_of
from tests.server.fakes import FakeHarness, huge, settings_in

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHarness:
    made = FakeHarness(settings_in(tmp_path / "home"))
    monkeypatch.setattr(commands, "make_harness", lambda settings: made)
    return made


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text("x = 1\n", encoding="utf-8")
    return path


def _document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Stdout must be exactly one JSON document."""
    out = capsys.readouterr().out

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return dict(json.loads(out, parse_constant=refuse))


def test_every_listing_is_one_document(harness: FakeHarness, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["ops", "--json"]) == 0
    assert [op["name"] for op in _document(capsys)["ops"]] == ["rms_norm", "silu_and_mul", "softmax"]
    assert commands.run(["stub", "softmax", "--json"]) == 0
    assert _document(capsys)["op"] == "softmax"
    assert commands.run(["gpus", "--json"]) == 0
    assert _document(capsys)["devices"][0]["device"]["kind"] == "cpu"
    assert commands.run(["doctor", "--json"]) == 0
    assert _document(capsys)["checks"][0]["name"] == "python"
    assert harness.closed


@pytest.mark.parametrize("outcome", list(Outcome))
def test_exit_codes_of_validate(
    harness: FakeHarness, candidate: Path, capsys: pytest.CaptureFixture[str], outcome: Outcome
) -> None:
    harness.make_report = lambda request, attempt_id: ValidateReport(
        op=request.op, level=1, outcome=outcome, blame=blame_of(outcome), attempt_id=attempt_id
    )
    code = commands.run(["validate", "rms_norm", str(candidate), "--json"])
    assert _document(capsys)["outcome"] == outcome.value
    expected = {None: 0 if outcome is Outcome.PASSED else 3, "candidate": 1}.get(blame_of(outcome), 3)
    assert code == expected


def test_validate_passes_its_options_on(harness: FakeHarness, candidate: Path) -> None:
    arguments = ["--cases", "quick", "--fresh", "--allow", "vllm", "--allow", "liger_kernel", "--device", "cpu"]
    assert commands.run(["validate", "rms_norm", str(candidate), *arguments, "--json"]) == 0
    request = harness.journal.attempts["a-0001"][0]
    assert (request.cases, request.fresh, request.device) == ("quick", True, "cpu")
    assert request.allow == ["vllm", "liger_kernel"]


def test_the_device_of_the_environment_is_the_default(
    harness: FakeHarness, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FK_DEVICE", "cpu")
    assert commands.run(["validate", "rms_norm", str(candidate), "--json"]) == 0
    assert harness.journal.attempts["a-0001"][0].device == "cpu"


def test_an_identical_submission_is_not_run_again(harness: FakeHarness, candidate: Path) -> None:
    for _ in range(2):
        assert commands.run(["validate", "rms_norm", str(candidate), "--json"]) == 0
    assert harness.started == 1
    assert commands.run(["validate", "rms_norm", str(candidate), "--fresh", "--json"]) == 0
    assert harness.started == 2


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["validate", "rms_norm", "absent.py"], 2, "No such file"),
        (["validate", "rms_norm", "."], 2, "not a regular file"),
        (["validate", "nope", "{candidate}"], 2, "no operator 'nope'"),
        (["validate", "rms_norm"], 2, "file"),
        (["validate", "rms_norm", "{candidate}", "--bogus"], 2, "bogus"),
        (["stub", "nope"], 2, "no operator 'nope'"),
        (["stub", "softmax", "--out", "{candidate}"], 2, "exists already"),
        (["ops", "--level", "9"], 2, "level"),
        (["stub", "softmax", "--json=yes"], 2, "--json"),
        (["gpus", "surplus"], 2, "surplus"),
        (["doctor", "--bogus"], 2, "bogus"),
        (["bogus"], 2, "bogus"),
        (["--bogus"], 2, "bogus"),
        ([], 2, ""),
    ],
)
def test_wrong_requests_exit_with_2_and_a_document(
    harness: FakeHarness,
    candidate: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    told: str,
) -> None:
    filled = [item.replace("{candidate}", str(candidate)) for item in arguments]
    assert commands.run([*filled, "--json"]) == code
    error = _document(capsys)["error"]
    assert told in error["message"]
    if any(item.startswith("--json") for item in filled):
        return
    assert commands.run(filled) == code
    shown = capsys.readouterr()
    assert told.split()[0] in shown.err if told else True
    assert harness.started == 0


@pytest.mark.parametrize(
    "error", [LeaseTimeout("held by pid 7"), HarnessError("lost"), RuntimeError("a bug"), KeyError("x")]
)
def test_faults_of_harness_and_machine_exit_with_3(
    harness: FakeHarness, candidate: Path, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    harness.raises["validate"] = error
    assert commands.run(["validate", "rms_norm", str(candidate), "--json"]) == 3
    assert _document(capsys)["error"]["code"] == getattr(error, "code", "harness_fault")
    assert harness.closed


def test_a_broken_check_of_doctor_exits_with_3(harness: FakeHarness, capsys: pytest.CaptureFixture[str]) -> None:
    broken = DoctorReport(checks=[Check(name="gpu", state="broken", found="it fell off")], sandbox="process")
    harness.doctor = lambda progress=None: broken  # type: ignore[method-assign,assignment]
    assert commands.run(["doctor", "--json"]) == 3
    assert _document(capsys)["checks"][0]["state"] == "broken"


def test_stub_writes_a_new_file(harness: FakeHarness, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "stub.py"
    assert commands.run(["stub", "softmax", "--out", str(out), "--json"]) == 0
    assert out.read_text(encoding="utf-8") == _document(capsys)["source"]


def test_people_see_what_failed_and_no_escape_of_the_candidate(
    harness: FakeHarness, candidate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.make_report = huge
    assert commands.run(["validate", "rms_norm", str(candidate)]) == 1
    shown = capsys.readouterr().out
    assert "WRONG_VALUES" in shown
    assert "last rows" in shown
    assert "y[1, 2] is None, expected 1.0" in " ".join(shown.split())
    assert "\x1b" not in shown
    for arguments in (["ops"], ["stub", "softmax"], ["gpus"], ["doctor"]):
        assert commands.run(arguments) == 0
        assert capsys.readouterr().out.strip()


def test_an_interrupt_cancels_in_order(
    harness: FakeHarness, candidate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate.write_text("#sleep 60\n", encoding="utf-8")

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        while not harness.started and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    assert commands.run(["validate", "rms_norm", str(candidate), "--json"]) == 3
    thread.join(30)
    assert _document(capsys)["error"]["code"] == "cancelled"
    assert harness.started == harness.stopped == 1
    assert harness.closed
    assert signal.getsignal(signal.SIGINT) == before


def test_help_and_usage_start_nothing_heavy() -> None:
    program = (
        "import sys\nfrom fk_core import commands\ncode = commands.run(['--help'])\n"
        "bad = [m for m in ('torch', 'triton', 'mcp', 'fk_server', 'numpy') if m in sys.modules]\n"
        "sys.exit(f'imported: {bad}' if bad else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "validate" in done.stdout


@pytest.mark.parametrize("shadow", ["mcp.py", "json.py", "torch.py"])
def test_serve_is_not_led_astray_by_files_of_the_project(tmp_path: Path, shadow: str) -> None:
    """The server is started in the user's project, which may hold modules of any name."""
    (tmp_path / shadow).write_text("raise SystemExit('shadowed')\n", encoding="utf-8")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fk_core.cli", "serve", "--http", "nonsense"],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "shadowed" not in done.stderr
    assert done.returncode == 2, done.stderr
    assert "no HOST:PORT" in done.stderr


@pytest.mark.parametrize("command", ["serve", "demo"])
@pytest.mark.parametrize("wrong", ["--nope", "surplus", "--json=yes", "--htt=x"])
def test_wrong_usage_of_the_other_programs_is_a_document_too(command: str, wrong: str) -> None:
    run = [sys.executable, "-m", "fk_core.cli", command, wrong]
    as_json = subprocess.run([*run, "--json"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert as_json.returncode == 2, as_json.stderr
    error = json.loads(as_json.stdout)["error"]
    assert error["code"] == "bad_request"
    assert wrong.partition("=")[0].lstrip("-") in error["message"]
    assert f"usage: fk {command}" in error["hint"]
    assert "Traceback" not in as_json.stderr
    if not wrong.startswith("--json"):
        plain = subprocess.run(run, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
        assert (plain.returncode, plain.stdout) == (2, "")
        assert error["message"].removesuffix(" --json") in plain.stderr


def test_version_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom fk_core import commands\ncode = commands.run(sys.argv[1:])\n"
        "bad = [m for m in ('torch', 'triton', 'mcp', 'numpy') if m in sys.modules]\n"
        "sys.exit(f'imported: {bad}' if bad else code)"
    )
    told = []
    for arguments in (["--version"], ["--version", "--json"]):
        run = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(run, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    found = json.loads(told[1])
    assert found["fk"] == __version__
    assert found["torch"] == metadata.version("torch")
    assert found["python"] == platform.python_version()
    assert told[0].strip() == ", ".join(f"{name} {version}" for name, version in found.items())


@pytest.fixture
def gone(tmp_path: Path) -> Iterator[None]:
    """A working directory that was deleted."""
    before = os.open(".", os.O_RDONLY)
    place = tmp_path / "gone"
    place.mkdir()
    os.chdir(place)
    place.rmdir()
    yield
    os.fchdir(before)
    os.close(before)


@pytest.mark.usefixtures("gone")
def test_a_working_directory_that_was_deleted(
    harness: FakeHarness,
    candidate: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for arguments in (["ops"], ["gpus"], ["stub", "softmax"], ["validate", "softmax", str(candidate)]):
        assert commands.run([*arguments, "--json"]) == 0
        _document(capsys)
    assert commands.run(["stub", "softmax", "--out", str(tmp_path / "stub.py")]) == 0
    capsys.readouterr()
    for arguments in (["stub", "softmax", "--out", "stub.py"], ["validate", "softmax", "kernel.py"]):
        assert commands.run([*arguments, "--json"]) == 2
        assert _document(capsys)["error"]["code"] == "bad_path"
    for name in ("FK_HOME", "FK_LOCK_DIR"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "here")
            assert commands.run(["ops", "--json"]) == 2
            assert f"{name}=here is relative" in _document(capsys)["error"]["message"]


def test_a_stub_in_a_pipe_is_the_source_and_nothing_else(tmp_path: Path) -> None:
    env = {**os.environ, "FK_HOME": str(tmp_path / "home"), "FK_LOCK_DIR": str(tmp_path / "locks"), "COLUMNS": "40"}
    run = [sys.executable, "-m", "fk_core.cli", "stub", "rms_norm"]
    piped = subprocess.run(run, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60, check=True)
    told = subprocess.run(
        [*run, "--json"], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert piped.stdout == json.loads(told.stdout)["source"]
    compile(piped.stdout, "stub.py", "exec")
    assert "Tolerance" in piped.stderr


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["validate"], "fk validate"),
        (["stub"], "fk stub"),
        (["ops", "--jsn"], "fk ops"),
        (["ops", "--level", "9"], "fk ops"),
        (["gpus", "surplus"], "fk gpus"),
        (["bogus"], "fk"),
        ([], "fk"),
    ],
)
def test_wrong_usage_names_the_help_of_its_own_command(
    arguments: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(arguments) == 2
    assert f"See `{command} --help`" in capsys.readouterr().err
