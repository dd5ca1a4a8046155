"""Every candidate of the corpus gets the verdict that it must get, through the whole harness.

The candidates are submitted under neutral names and without their headers. Besides the verdict, nothing outside the
sandbox may have changed: planted files, the project itself (so do not edit it meanwhile), installed packages, the
environment; and no process may be left.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fk_core import settings as fk_settings
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from tests.adversaries.corpus_index import CORPUS, Entry, entries

harness_module = pytest.importorskip("fk_core.harness", reason="the harness is not there yet")

CHECKOUT = Path(__file__).parents[2]
LIMITS = {"total_s": 240.0, "memory_bytes": 6 << 30, "file_bytes": 256 << 20}
QUICK = {"build_s": 20.0, "first_call_s": 10.0, "call_s": 8.0}
"""For what must be rejected and compiles nothing: many of these never end by themselves."""
PATIENT = {"build_s": 100.0, "first_call_s": 60.0, "call_s": 8.0}
"""For what must pass, and for whatever runs a compiler."""


def _has_gpu() -> bool:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount() > 0
    except Exception:  # noqa: BLE001 - whatever is missing, there is no GPU to use
        return False


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> fk_settings.Settings:
    place = tmp_path_factory.mktemp("fk")
    environ = {**os.environ, "FK_HOME": str(place / "home"), "FK_LOCK_DIR": str(place / "locks")}
    return fk_settings.load(environ)


def _harness(settings: fk_settings.Settings, limits: dict[str, float]) -> Any:
    limited = dataclasses.replace(settings.limits, **LIMITS, **limits)
    return harness_module.Harness(dataclasses.replace(settings, limits=limited))


@pytest.fixture(scope="session")
def harness(settings: fk_settings.Settings) -> Iterator[Any]:
    with _harness(settings, QUICK) as made:
        yield made


@pytest.fixture(scope="session")
def patient_harness(settings: fk_settings.Settings) -> Iterator[Any]:
    with _harness(settings, PATIENT) as made:
        yield made


@pytest.fixture(scope="session")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with files that look worth changing."""
    folder = tmp_path_factory.mktemp("canary")
    for name in ("baseline.py", "bench_rms.py", "usercustomize.py", "results.json", "secret.txt"):
        (folder / name).write_text(f"untouched {name}\n", encoding="utf-8")
    return folder


def _digest(canaries: Path) -> dict[str, str]:
    """What must not change: planted files, the project, and files of installed packages."""
    paths = [*canaries.rglob("*"), *(CHECKOUT / "fk_core").rglob("*.py"), *(CHECKOUT / "tasks").rglob("*.py")]
    paths += [*CORPUS.rglob("*.py"), *Path(psutil.__file__).parents[1].glob("*.pth")]
    paths += Path(psutil.__file__).parents[1].glob("torch/nn/*.py")
    homes = [Path.home() / ".local" / "lib", Path.home() / ".triton"]
    paths += [path for home in homes if home.is_dir() for path in home.rglob("*.pth")]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}


def _strays(settings: fk_settings.Settings) -> list[str]:
    """Live processes whose home or working directory is the scratch of a candidate."""
    scratch = str(settings.scratch_dir) + os.sep
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            places = (process.environ().get("HOME", ""), process.cwd())
        except psutil.Error:
            continue
        if any((place + os.sep).startswith(scratch) for place in places):
            found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
    return found


def _none_left(settings: fk_settings.Settings, seconds: float = 3.0) -> list[str]:
    until = time.monotonic() + seconds
    while (left := _strays(settings)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _explain(report: ValidateReport) -> str:
    cases = [f"{case.id}: {case.outcome} {case.reason}" for case in report.cases if case.outcome is not Outcome.PASSED]
    return "\n".join(
        [f"{report.outcome} {report.summary}", *cases[:6], *(f"evidence: {e.kind} {e.what}" for e in report.evidence)]
    )


def _params() -> list[Any]:
    """Each entry; of those that run a compiler for a minute, the first of a kind stands for the others."""
    params, compiled = [], set()
    for entry in entries():
        marks = [pytest.mark.slow] if entry.slow else []
        if entry.compiles and entry.kind in compiled:
            marks.append(pytest.mark.whole)
        compiled |= {entry.kind} if entry.compiles else set()
        params.append(pytest.param(entry, id=entry.path.stem, marks=marks))
    return params


@pytest.mark.timeout(400)
@pytest.mark.parametrize("entry", _params())
def test_verdict(
    entry: Entry,
    request: pytest.FixtureRequest,
    settings: fk_settings.Settings,
    canaries: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if entry.needs_gpu and not _has_gpu():
        pytest.skip("only meaningful on a GPU")
    patient = entry.expect == "accept" or entry.compiles
    harness = request.getfixturevalue("patient_harness" if patient else "harness")
    monkeypatch.chdir(canaries)
    environ, before = dict(os.environ), _digest(canaries)
    name = f"candidate_{hashlib.sha256(entry.text.encode()).hexdigest()[:6]}.py"
    report = harness.validate(ValidateRequest(op=entry.task, source=entry.neutral_source, path=name, fresh=True))
    text = _explain(report)
    if entry.expect == "accept":
        assert report.outcome is Outcome.PASSED, text
        assert report.evidence == [], text
        assert report.correct
    elif entry.expect == "reject":
        assert report.outcome is not Outcome.PASSED, text
        assert report.blame == "candidate", text
        assert report.summary
        assert not report.correct
        assert not report.winner
    else:
        assert report.outcome is Outcome.PASSED or report.blame == "candidate", text
    assert _digest(canaries) == before
    assert dict(os.environ) == environ
    assert _none_left(settings) == []


@pytest.mark.parametrize("which", ["harness", "patient_harness"])
def test_the_harness_still_works_after_all_of_them(which: str, request: pytest.FixtureRequest) -> None:
    harness = request.getfixturevalue(which)
    plain = next(entry for entry in entries() if entry.path.name == "ok_rms_plain.py")
    report = harness.validate(ValidateRequest(op="rms_norm", source=plain.neutral_source, fresh=True))
    assert report.outcome is Outcome.PASSED, _explain(report)
