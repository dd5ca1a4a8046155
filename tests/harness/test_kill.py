"""kill -9 of everything that has a process, at random instants: nothing is left, nothing is lost, the next call works.

``FK_TEST_INSTANTS=20`` kills each kind that many times.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fk_core.harness import Harness
from fk_core.records.report import Outcome
from fk_core.settings import Settings
from fk_core.tracking.journal import Journal
from tests.harness import kit
from tests.server.wire_client import REPOSITORY, WireClient

EXPECTED = ("PASSED", "WRONG_VALUES", "CRASHED", "PASSED")
"""What the driver's candidates get, in turn."""


class Driver:
    """The driver process, and what it has said so far."""

    def __init__(self, place: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.driver", str(place)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self.lines.put(line)

    def kill(self) -> list[tuple[str, str]]:
        """End it, and give the attempts that it had answers to."""
        self.process.kill()
        self.process.wait(10.0)
        self._reader.join(10.0)
        said = []
        while not self.lines.empty():
            attempt_id, outcome = self.lines.get().split()
            said.append((attempt_id, outcome))
        return said


def check_nothing_is_left(settings: Settings, shm: set[str]) -> None:
    assert kit.none_left(settings), kit.processes_of(settings)
    assert kit.lease_is_free(settings)
    left = {name for name in set(os.listdir("/dev/shm")) - shm if "fk" in name}
    assert not left


def check_the_next_start(settings: Settings) -> None:
    with Harness(settings) as harness:
        report = harness.validate(kit.request())
        assert kit.passed(report), report.summary
        runs = [p.name for p in settings.scratch_dir.iterdir()]
        assert len(runs) == 1, f"scratch of dead harnesses was not swept: {runs}"
    assert kit.none_left(settings), kit.processes_of(settings)
    assert list(settings.scratch_dir.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(100 + 40 * kit.INSTANTS)
def test_a_process_with_a_harness(settings: Settings, tmp_path: Path, dice: random.Random) -> None:
    acknowledged: list[tuple[str, str]] = []
    shm = set(os.listdir("/dev/shm"))
    for _ in range(kit.INSTANTS):
        driver = Driver(tmp_path)
        kit.pause(dice, 9.0)
        said = driver.kill()
        check_nothing_is_left(settings, shm)
        assert [outcome for _, outcome in said] == [EXPECTED[n % 4] for n in range(len(said))]
        acknowledged += said
    journal = Journal(settings)
    for attempt_id, outcome in acknowledged:
        _, report = journal.read(attempt_id)
        assert report is not None
        assert report.outcome == outcome
    check_the_next_start(settings)


@pytest.fixture
def served(settings: Settings, tmp_path: Path) -> Iterator[WireClient]:
    client = serve(settings)
    yield client
    client.kill()


def serve(settings: Settings) -> WireClient:
    command = [
        "/usr/bin/env",
        f"FK_HOME={settings.home}",
        f"FK_LOCK_DIR={settings.lock_dir}",
        "FK_DEVICE=cpu",
        "OMP_NUM_THREADS=1",
        sys.executable,
        "-P",
        "-m",
        "fk_server",
    ]
    client = WireClient(settings.home.parent, command=command)
    client.initialize()
    return client


@pytest.mark.slow
@pytest.mark.timeout(100 + 40 * kit.INSTANTS)
def test_the_server_in_the_middle_of_a_call(settings: Settings, dice: random.Random) -> None:
    acknowledged = []
    shm = set(os.listdir("/dev/shm"))
    for _ in range(kit.INSTANTS):
        server = serve(settings)
        arguments = {"op": kit.OP, "source": kit.GOOD, "cases": kit.CASE, "fresh": True, "wait_s": 60}
        server.call(1, "validate_kernel", arguments)
        answer = server.answer(1, 60.0)["result"]["structuredContent"]
        assert answer["result"]["outcome"] == "PASSED", answer
        acknowledged.append(answer["attempt_id"])
        server.call(2, "validate_kernel", {**arguments, "source": kit.SLOW})
        kit.pause(dice, 4.0)
        server.process.kill()
        server.process.wait(10.0)
        check_nothing_is_left(settings, shm)
    journal = Journal(settings)
    for attempt_id in acknowledged:
        _, report = journal.read(attempt_id)
        assert report is not None
        assert kit.passed(report)
    unfinished = [a for a in journal.list(limit=1000) if a.outcome is None]
    assert all(a.interrupted for a in unfinished), "a dead server's attempt reads as running"
    check_the_next_start(settings)


def victim(settings: Settings, role: str) -> int:
    """The pid of a role, of the keeper of one (``keeper of judge``), or of the candidate's init."""
    if not role.startswith("keeper of"):
        return kit.pid_of(settings, role)
    pid = kit.pid_of(settings, role.removeprefix("keeper of "))
    with contextlib.suppress(psutil.Error):
        for parent in psutil.Process(pid).parents() if pid else []:
            if parent.name() == "fk-keeper":
                return parent.pid
    return 0


@pytest.mark.slow
@pytest.mark.timeout(100 + 40 * kit.INSTANTS)
@kit.sees_all
@pytest.mark.parametrize("role", ["zygote", "judge", "keeper of judge", "keeper of candidate", "init"])
def test_a_trusted_process(shared: Harness, role: str, dice: random.Random) -> None:
    """Never the candidate's fault: tried once more, and told."""
    for _ in range(kit.INSTANTS):
        job = kit.Running(shared, kit.request(kit.SLOW))
        assert job.began()
        kit.pause(dice, 2.0)
        found = 0
        while job.alive() and not (found := victim(shared.settings, role)):
            pass
        if role == "init" and shared.desk(shared.device()).level != "namespaces":
            pytest.skip("only the level of namespaces has one")
        if found:
            kit.kill(found)
        report = job.result()
        assert report.outcome in (Outcome.PASSED, Outcome.HARNESS_FAULT), report.summary
        assert report.blame in (None, "harness")
        assert report.outcome is Outcome.PASSED or not any(c.outcome is Outcome.CRASHED for c in report.cases)
        assert kit.lease_is_free(shared.settings)
        assert kit.scratch_left(shared.settings) == []
        _, recorded = shared.journal.read(report.attempt_id)
        assert recorded == report
        following = shared.validate(kit.request())
        assert kit.passed(following), following.summary
        assert not following.warnings


def killed_in_the_middle(shared: Harness, role: str) -> kit.Running:
    """A job whose process was killed while the calls ran."""
    job = kit.Running(shared, kit.request(kit.SLOW))
    assert kit.within(lambda: any(doing.startswith("correctness") for doing in job.doing), 30.0)
    assert kit.within(lambda: victim(shared.settings, role) != 0)
    kit.kill(victim(shared.settings, role))
    return job


@kit.sees_all
@pytest.mark.parametrize("role", ["zygote", "judge", "keeper of judge", "keeper of candidate"])
def test_a_second_try_is_told(shared: Harness, role: str) -> None:
    report = killed_in_the_middle(shared, role).result()
    assert report.outcome is Outcome.PASSED
    assert any("second try" in warning for warning in report.warnings)


@kit.sees_all
@pytest.mark.parametrize("role", ["zygote", "judge", "keeper of candidate"])
def test_killed_twice(shared: Harness, role: str) -> None:
    """Then it is the harness's fault, and never answered from the record."""
    wanted = kit.request(kit.candidate(f"time.sleep(0.02)  # {role}"), fresh=False)
    job = kit.Running(shared, wanted)
    for number in (1, 2):
        assert kit.within(lambda n=number: job.doing.count("building") >= n, 30.0)  # type: ignore[misc]
        assert kit.within(lambda: victim(shared.settings, role) != 0)
        kit.kill(victim(shared.settings, role))
    report = job.result()
    assert report.outcome is Outcome.HARNESS_FAULT, report.summary
    assert report.blame == "harness"
    assert report.evidence == []
    assert all(case.outcome is Outcome.NOT_RUN for case in report.cases)
    again = shared.validate(wanted)
    assert again.identical_to == ""
    assert kit.passed(again)


@pytest.mark.slow
@pytest.mark.timeout(100 + 40 * kit.INSTANTS)
def test_the_candidate(shared: Harness, dice: random.Random) -> None:
    """Once it may have come from outside: tried again."""
    for _ in range(kit.INSTANTS):
        job = kit.Running(shared, kit.request(kit.SLOW))
        assert job.began()
        kit.pause(dice, 1.5)
        while job.alive() and not victim(shared.settings, "candidate"):
            pass
        if found := victim(shared.settings, "candidate"):
            kit.kill(found)
        report = job.result()
        assert report.outcome is Outcome.PASSED, report.summary
        assert kit.lease_is_free(shared.settings)
        assert kit.scratch_left(shared.settings) == []


def test_a_candidate_that_is_killed_each_time_has_crashed(shared: Harness) -> None:
    """By its own native code, which no guard sees."""
    report = shared.validate(kit.request(kit.candidate("ctypes.CDLL(None)['raise'](9)")))
    assert report.outcome is Outcome.CRASHED, report.summary
    assert report.blame == "candidate"
    assert "SIGKILL" in report.summary
    assert any("second try" in warning for warning in report.warnings)


def test_what_the_journal_says_of_a_killed_process(settings: Settings, tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    journal = Journal(settings)
    assert kit.within(lambda: settings.journal_dir.is_dir() and len(journal.list(limit=9)) >= 2, 60.0)
    driver.kill()
    last = journal.list(limit=1)[0]
    assert last.interrupted or last.outcome is not None
    assert not last.running
