"""What is kept of a machine survives several writers and spoiled files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fk_core import calibrate
from fk_core.calibrate import Floors
from fk_core.catalog import Catalog
from fk_core.harness import Harness
from fk_core.records.device import Device
from fk_core.records.report import CaseReport, Machine, Outcome, ValidateReport
from fk_core.settings import Settings

DEVICE = Device(kind="cpu", uuid="cpu-0", name="CPU")


def _timed(case: str, us: float) -> ValidateReport:
    row = CaseReport(id=case, outcome=Outcome.PASSED, baseline_us=us, floor_us=1.0)
    return cast(ValidateReport, type("Report", (), {"cases": [row]})())


def test_nothing_is_lost_when_many_write_at_once(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, lock_dir=tmp_path / "locks")
    specs = [Catalog().get(name) for name in ("rms_norm", "softmax")]

    def write(n: int) -> None:
        floors = Floors(settings)
        if n == 7:
            floors.keep(DEVICE, 0.004, [1.0])
        floors.note_times(DEVICE, specs[n % 2], _timed(f"case-{n}", float(n + 1)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    kept = Floors(settings)
    assert kept.measured(DEVICE) == 0.004
    for parity, spec in enumerate(specs):
        found: dict[str, Any] = kept.times(DEVICE, spec)
        assert found == {f"case-{n}": (1.0, n + 1.0) for n in range(parity, 40, 2)}


def test_an_error_that_was_measured_beside_others_takes_the_place_of_a_larger_one_only(tmp_path: Path) -> None:
    floors = Floors(Settings(home=tmp_path, lock_dir=tmp_path / "locks"))
    floors.keep(DEVICE, 0.5, [1.6], crowded=True)
    assert floors.measured(DEVICE) == 0.5
    floors.keep(DEVICE, 0.3, [1.3], crowded=True)
    assert floors.measured(DEVICE) == 0.3
    floors.keep(DEVICE, 0.45, [1.5], crowded=True)
    assert floors.measured(DEVICE) == 0.3
    floors.keep(DEVICE, 0.45, [1.5])
    assert floors.measured(DEVICE) == 0.45, "of a quiet moment, so that is how the machine is"


@pytest.mark.parametrize(
    ("floor", "crowded", "age_s", "again"),
    [
        (0.45, False, 4000.0, True),
        (0.45, False, 100.0, False),
        (0.1, True, 4000.0, True),
        (0.1, False, 4000.0, False),
        (0.1, True, 100.0, False),
    ],
)
def test_a_bad_error_is_measured_again_when_a_server_starts_later(
    floor: float, crowded: bool, age_s: float, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(Settings(home=tmp_path, lock_dir=tmp_path / "locks", device="cpu"))
    device = harness.device()
    harness.measure_again()
    assert harness.floors.measured(device) is None, "`fk doctor` measures it first"
    monkeypatch.setattr(calibrate.time, "time", lambda: 1e9)
    harness.floors.keep(device, floor, [1.0], crowded=crowded)
    monkeypatch.setattr(calibrate.time, "time", lambda: 1e9 + age_s)
    run = SimpleNamespace(
        outcome=Outcome.PASSED,
        machine=Machine(device="cpu"),
        cases=[CaseReport(id="a", outcome=Outcome.PASSED, speedup=1.05)],
    )
    monkeypatch.setattr(calibrate, "run_twin", lambda *given, **named: run)
    harness.measure_again()
    assert harness.floors.measured(device) == pytest.approx(0.0488 if again else floor, abs=1e-4)
    harness.close()


def test_a_machine_that_stays_busy_is_not_measured_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floors = Floors(Settings(home=tmp_path, lock_dir=tmp_path / "locks"))
    for at, doubtful in ((0.0, False), (4000.0, True)):
        monkeypatch.setattr(calibrate.time, "time", lambda at=at: 1e9 + at)
        if not at:
            floors.keep(DEVICE, 0.4, [1.4], crowded=True)
        assert floors.doubtful(DEVICE) is doubtful
    floors.keep(DEVICE, 0.5, [1.6], crowded=True)
    assert floors.measured(DEVICE) == 0.4
    assert not floors.doubtful(DEVICE), "it has just been measured, and was no better"
    assert floors.bad(DEVICE)


def test_a_measurement_ends_when_its_harness_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(Settings(home=tmp_path, lock_dir=tmp_path / "locks", device="cpu"))
    cases = [CaseReport(id="a", outcome=Outcome.PASSED, speedup=1.5)]
    runs = [
        SimpleNamespace(outcome=Outcome.PASSED, machine=None, cases=cases, summary=""),
        SimpleNamespace(outcome=Outcome.CANCELLED, machine=None, cases=[], summary="CANCELLED: closed"),
    ]
    monkeypatch.setattr(calibrate, "run_twin", lambda *given, **named: runs.pop(0))
    found = calibrate.measure_floor(harness, harness.device())
    assert (found.problems, found.floor) == (["CANCELLED: closed"], None)
    assert harness.floors.measured(harness.device()) is None, "too little to go by"
    harness.close()
