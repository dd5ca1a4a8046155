"""Many jobs at once: every verdict right, and nothing piles up."""

from __future__ import annotations

import itertools
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fk_core.harness import Harness
from fk_core.leases.devices import cpu_device
from fk_core.leases.flock import FlockLeases
from fk_core.records.report import Outcome
from fk_core.settings import Settings
from tests.harness import kit
from tests.server.wire_client import REPOSITORY

SOURCES = {"good": kit.GOOD, "wrong": kit.WRONG, "crashing": kit.CRASHING, "broken": kit.candidate(top="1 / 0")}
EXPECTED = {
    "good": Outcome.PASSED,
    "wrong": Outcome.WRONG_VALUES,
    "crashing": Outcome.CRASHED,
    "broken": Outcome.BUILD_FAILED,
    "cancelled": Outcome.CANCELLED,
}


@pytest.mark.slow
def test_threads_with_one_harness(shared: Harness) -> None:
    work: queue.Queue[str] = queue.Queue()
    for name in itertools.islice(itertools.cycle(EXPECTED), 20):
        work.put(name)
    got: list[tuple[str, Outcome | str]] = []

    def one() -> None:
        while True:
            try:
                name = work.get_nowait()
            except queue.Empty:
                return
            cancel = threading.Event()
            if name == "cancelled":
                threading.Timer(0.7, cancel.set).start()
            source = SOURCES.get(name, kit.candidate("time.sleep(3)"))
            try:
                report = shared.validate(kit.request(source), cancel=cancel)
                got.append((name, report.outcome))
            except Exception as error:  # noqa: BLE001 - compared below
                got.append((name, repr(error)))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150.0)
    assert len(got) == 20
    assert [(name, outcome) for name, outcome in got if outcome is not EXPECTED[name]] == []
    assert kit.lease_is_free(shared.settings)
    assert kit.scratch_left(shared.settings) == []


@pytest.mark.slow
def test_processes_that_share_home_and_locks(settings: Settings, tmp_path: Path) -> None:
    """Two drivers and this process take turns at one device."""
    command = [sys.executable, "-m", "tests.harness.driver", str(tmp_path)]
    with Harness(settings) as harness:
        drivers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) for _ in range(2)]
        try:
            said: list[list[str]] = [[], []]
            for driver, lines in zip(drivers, said, strict=True):
                assert driver.stdout is not None
                for _ in range(4):
                    lines.append(driver.stdout.readline().split()[1])
                assert kit.passed(harness.validate(kit.request()))
        finally:
            for driver in drivers:
                driver.kill()
                driver.wait(10.0)
                assert driver.stdout is not None
                driver.stdout.close()
    assert said == [["PASSED", "WRONG_VALUES", "CRASHED", "PASSED"]] * 2
    assert kit.none_left(settings)
    assert kit.lease_is_free(settings)


@pytest.mark.slow
def test_nothing_piles_up(shared: Harness) -> None:
    """Descriptors, threads and processes after thirty jobs are those after the first ones."""
    kinds = [kit.GOOD, kit.WRONG, kit.CRASHING, SOURCES["broken"], kit.candidate("os._exit(1)")]

    def all_kinds() -> None:
        for source in kinds:
            shared.validate(kit.request(source))
        job = kit.Running(shared, kit.request(kit.SLOW))
        job.began()
        job.cancel.set()
        job.result()

    all_kinds()
    before = kit.counts(), len(kit.processes_of(shared.settings))
    for _ in range(5):
        all_kinds()
    assert kit.within(lambda: (kit.counts(), len(kit.processes_of(shared.settings))) == before), (
        before,
        kit.counts(),
        kit.processes_of(shared.settings),
    )


def test_waiting_for_others_counts_as_queue(shared: Harness) -> None:
    """Also the wait for the device to oneself, in the middle of a job, which once counted as timing."""
    leases, ahead = FlockLeases(shared.settings), list[int]()
    with leases.acquire(cpu_device(), "shared", purpose="somebody else"):
        job = kit.Running(shared, kit.request(), queued=ahead.append)
        assert kit.within(lambda: any("somebody else" in doing for doing in job.doing), 30.0)
        time.sleep(2.0)
    report = job.result()
    assert kit.passed(report)
    assert report.seconds.queue > 1.9
    assert report.seconds.timing < report.seconds.total - report.seconds.queue + 0.1
    assert ahead == [0], "it ran before it waited for the device to itself"


def test_a_job_says_how_many_are_ahead(shared: Harness) -> None:
    """Jobs of this process, then whoever has the device."""
    ahead: list[list[int]] = [[], []]
    with FlockLeases(shared.settings).acquire(cpu_device(), "exclusive"):
        jobs = [kit.Running(shared, kit.request(), queued=told.append) for told in ahead]
        assert kit.within(lambda: ahead == [[1], [1]], 30.0)
    assert all(kit.passed(job.result()) for job in jobs)
    assert [(told[0], told[-1]) for told in ahead] == [(1, 0), (1, 0)]
