"""Disks that are full, read-only or gone, tasks and baselines that are broken: said clearly, blamed on no kernel."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fk_core.catalog import Catalog
from fk_core.errors import HarnessError, JournalError
from fk_core.harness import Harness
from fk_core.records.report import Outcome
from fk_core.settings import Settings
from tests.harness import kit
from tests.server.wire_client import REPOSITORY

TASK = REPOSITORY / "tasks" / "L1" / f"{kit.OP}.py"


def fk_validate(settings: Settings, source: str, tmp_path: Path, *, umask: int = -1) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON answer of the command."""
    file = tmp_path / "candidate.py"
    file.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "fk_core.cli", "validate", kit.OP, str(file), "--cases", kit.CASE, "--json"]
    environ = {
        **os.environ,
        "FK_HOME": str(settings.home),
        "FK_LOCK_DIR": str(settings.lock_dir),
        "FK_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, env=environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, umask=umask
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "fk-test", str(place)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leave no room at all."""
    stuff = place / "stuff"
    with stuff.open("wb", buffering=0) as file:
        while True:
            try:
                if file.write(b"\0" * 4096) < 4096:
                    break
            except OSError:
                break
    return stuff


def settings_on(mounted: Path, tmp_path: Path) -> Settings:
    from dataclasses import replace

    return replace(kit.settings_at(tmp_path), home=mounted / "home")


def test_a_full_disk(mounted: Path, tmp_path: Path) -> None:
    settings = settings_on(mounted, tmp_path)
    with Harness(settings) as harness:
        first = harness.validate(kit.request())
        assert kit.passed(first)
        stuff = fill(mounted)
        with pytest.raises(JournalError, match="No space left"):
            harness.validate(kit.request())
        code, answer = fk_validate(settings, kit.WRONG, tmp_path)
        assert code == 3
        assert "No space left" in answer["error"]["message"]
        stuff.unlink()
        assert kit.passed(harness.validate(kit.request()))
        _, recorded = harness.journal.read(first.attempt_id)
        assert recorded == first


def test_a_disk_with_little_room(mounted: Path, tmp_path: Path) -> None:
    settings = settings_on(mounted, tmp_path)
    with Harness(settings) as harness:
        assert kit.passed(harness.validate(kit.request()))
        stuff = fill(mounted)
        os.truncate(stuff, stuff.stat().st_size - (4 << 20))
        report = harness.validate(kit.request())
        assert report.outcome is Outcome.HARNESS_FAULT
        assert report.blame == "harness"
        assert "FK_HOME" in report.summary
        stuff.unlink()
        assert kit.passed(harness.validate(kit.request()))


def test_a_disk_that_fills_up_meanwhile(mounted: Path, tmp_path: Path) -> None:
    """The candidate fails for want of room that others took."""
    settings = settings_on(mounted, tmp_path)
    with Harness(settings) as harness:
        assert kit.passed(harness.validate(kit.request()))
        write = "with open('big', 'wb') as f: f.write(bytes(4 << 20))"
        job = kit.Running(harness, kit.request(kit.candidate(f"time.sleep(2)\n{write}")))
        assert kit.within(lambda: any(doing.startswith("correctness") for doing in job.doing), 30.0)
        stuff = fill(mounted)
        os.truncate(stuff, stuff.stat().st_size - (2 << 20))
        report = job.result()
        assert report.outcome is Outcome.HARNESS_FAULT, report.summary
        assert "full" in report.summary
        assert harness.journal.attempt(report.attempt_id).outcome is Outcome.HARNESS_FAULT


def test_a_home_that_cannot_be_written(mounted: Path, tmp_path: Path) -> None:
    settings = settings_on(mounted, tmp_path)
    with Harness(settings) as harness:
        first = harness.validate(kit.request())
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    code, answer = fk_validate(settings, kit.WRONG, tmp_path)
    assert code == 3
    assert answer["error"]["code"] == "journal_error"
    assert "Read-only" in answer["error"]["message"]
    assert "FK_HOME" in answer["error"]["hint"]
    with Harness(settings) as harness:
        _, recorded = harness.journal.read(first.attempt_id)
        assert recorded == first


def test_no_place_for_locks(settings: Settings, tmp_path: Path) -> None:
    settings.lock_dir.write_text("not a directory", encoding="utf-8")
    code, answer = fk_validate(settings, kit.GOOD, tmp_path)
    assert code == 3
    assert answer["outcome"] == "HARNESS_FAULT"
    assert answer["blame"] == "harness"
    assert "FK_LOCK_DIR" in answer["summary"]


@pytest.mark.parametrize("umask", [0o777, 0o277, 0o077, 0o000])
def test_any_umask(settings: Settings, tmp_path: Path, umask: int) -> None:
    code, answer = fk_validate(settings, kit.GOOD, tmp_path, umask=umask)
    assert code == 0, answer
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in settings.home.iterdir()}
    assert modes.pop(settings.journal_dir) == 0o700
    assert set(modes.values()) == {0o755}, modes
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o755
    assert stat.S_IMODE(settings.lock_dir.stat().st_mode) == 0o1777


def test_a_harness_says_what_is_wrong_with_the_umask(settings: Settings) -> None:
    """In a program of somebody else, whose umask is not ours to set."""
    before = os.umask(0o177)
    try:
        with pytest.raises(HarnessError, match="umask 0177") as caught:
            Harness(settings)
    finally:
        os.umask(before)
    assert "os.umask(0o077)" in caught.value.hint
    Harness(settings).close()


def test_a_home_that_is_deleted_while_in_use(harness: Harness, settings: Settings) -> None:
    assert kit.passed(harness.validate(kit.request()))
    shutil.rmtree(settings.home)
    report = harness.validate(kit.request())
    assert kit.passed(report), report.summary
    _, recorded = harness.journal.read(report.attempt_id)
    assert recorded == report


def test_a_home_that_is_deleted_during_a_job(harness: Harness, settings: Settings) -> None:
    write = "with open('note', 'w') as f: f.write('x')"
    job = kit.Running(harness, kit.request(kit.candidate(f"time.sleep(1)\n{write}")))
    assert kit.within(lambda: any(doing.startswith("correctness") for doing in job.doing), 60.0)
    shutil.rmtree(settings.home, ignore_errors=True)
    assert kit.within(lambda: not job.alive(), 60.0)
    assert job.error is None or isinstance(job.error, HarnessError), job.error
    assert job.report is None or job.report.blame in (None, "harness"), job.report.summary
    assert kit.passed(harness.validate(kit.request()))


# -- tasks and baselines -----------------------------------------------------------------------------------------------


ORACLE, INPUTS = "def oracle(call, state, inputs):", "def make_inputs(call, draw):"


def with_task(harness: Harness, place: Path, change: tuple[str, str]) -> None:
    """Have the harness use a changed copy of the task."""
    folder = place / "tasks" / "L1"
    folder.mkdir(parents=True)
    text = TASK.read_text(encoding="utf-8")
    assert change[0] in text
    (folder / TASK.name).write_text(text.replace(*change), encoding="utf-8")
    harness.catalog = Catalog([place / "tasks"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("def oracle(call, state, inputs):", "def oracle(call, state, inputs):\n    raise LookupError('lost')"),
            "lost",
        ),
        (("def make_inputs(call, draw):", "def make_inputs(call, draw):\n    return {}"), "make_inputs"),
    ],
)
def test_a_task_whose_code_fails(harness: Harness, tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with_task(harness, tmp_path, change)
    report = harness.validate(kit.request(fresh=False))
    assert report.outcome is Outcome.UNTESTABLE, report.summary
    assert report.blame == "harness"
    assert said in report.summary
    assert "Mend" in report.summary
    assert report.evidence == []
    assert harness.cached_report(kit.request(fresh=False)) is None
    harness.catalog = Catalog()
    assert kit.passed(harness.validate(kit.request()))


def test_a_task_file_that_vanishes(harness: Harness, tmp_path: Path) -> None:
    with_task(harness, tmp_path, ('"level": 1', '"level": 1'))

    def progress(doing: str, share: float | None) -> None:
        if doing == "starting":
            shutil.rmtree(tmp_path / "tasks")

    report = harness.validate(kit.request(), progress)
    assert report.outcome in (Outcome.UNTESTABLE, Outcome.HARNESS_FAULT), report.summary
    assert report.blame == "harness"
    assert TASK.name in report.summary
    harness.catalog = Catalog()
    assert kit.passed(harness.validate(kit.request()))


def test_a_baseline_whose_build_fails(harness: Harness, tmp_path: Path) -> None:
    """torch_eager says that it has a softmax, and has none for a class of this name."""
    with_task(harness, tmp_path, ('"Softmax"', '"Other"'))
    report = harness.validate(kit.request(kit.GOOD.replace("class Softmax", "class Other")))
    assert report.outcome is Outcome.UNTESTABLE, report.summary
    assert report.blame == "harness"
    assert "no baseline to judge against" in report.summary
    harness.catalog = Catalog()
    assert kit.passed(harness.validate(kit.request()))


def test_a_task_without_any_baseline(harness: Harness, tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "L1"
    folder.mkdir(parents=True)
    text = TASK.read_text(encoding="utf-8").replace('"name": "softmax"', '"name": "softmin"')
    (folder / "softmin.py").write_text(text, encoding="utf-8")
    harness.catalog = Catalog([tmp_path / "tasks"])
    report = harness.validate(kit.request().model_copy(update={"op": "softmin"}))
    assert report.outcome is Outcome.UNTESTABLE, report.summary
    assert report.blame == "harness"
    assert "torch_eager" in report.summary


def test_a_failing_baseline_in_the_command(settings: Settings, tmp_path: Path) -> None:
    """Through the whole command, with a task directory of its own."""
    assert fk_validate(settings, kit.GOOD, tmp_path)[0] == 0
    assert fk_validate(settings, kit.WRONG, tmp_path)[0] == 1
