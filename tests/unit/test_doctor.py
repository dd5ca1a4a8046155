"""What doctor says of the machine's own error, and where it can write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fk_core import calibrate
from fk_core.calibrate import Calibration, Floors
from fk_core.doctor import _floor_check, _planted_check, _software
from fk_core.harness import Harness
from fk_core.records.device import Device
from fk_core.settings import Settings

CPU, GPU = Device(kind="cpu", uuid="cpu"), Device(kind="cuda", uuid="GPU-0")


@pytest.mark.parametrize(
    ("device", "floor", "state"),
    [(CPU, 0.08, "ok"), (CPU, 0.2, "ok"), (CPU, 0.45, "warn"), (GPU, 0.01, "ok"), (GPU, 0.02, "warn")],
)
def test_a_large_error_is_a_warning_with_what_to_do(device: Device, floor: float, state: str, tmp_path: Path) -> None:
    floors = Floors(Settings(home=tmp_path, lock_dir=tmp_path))
    floors.keep(device, floor, [1.0])
    check = _floor_check(device, Calibration(floor=floor), floors)
    assert check.state == state
    assert "a kernel timed against itself" in check.found
    assert bool(check.todo) == (state == "warn")
    assert ("measures it anew" in check.todo) == (state == "warn")


def test_an_error_that_was_not_measured(tmp_path: Path) -> None:
    floors = Floors(Settings(home=tmp_path, lock_dir=tmp_path))
    assert _floor_check(CPU, Calibration(), floors).state == "broken"


@pytest.mark.parametrize(
    ("kept", "crowded", "says"),
    [
        (0.1, False, "an error of 20%, measured at a better moment"),
        (0.1, True, "an error of 20%, and a server that starts later than an hour from now measures it anew"),
        (0.3, False, "an error of 30%, and a server that starts later than an hour from now measures it anew"),
    ],
)
def test_a_server_is_said_to_measure_anew_only_where_it_will(
    kept: float, crowded: bool, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floors = Floors(Settings(home=tmp_path, lock_dir=tmp_path))
    monkeypatch.setattr(calibrate.time, "time", lambda: 1e9)
    floors.keep(CPU, kept, [1.0], crowded=crowded)
    floors.keep(CPU, 0.5, [1.6], crowded=True)
    check = _floor_check(CPU, Calibration(floor=0.5, crowd="other work"), floors)
    assert check.todo.endswith(says)
    monkeypatch.setattr(calibrate.time, "time", lambda: 1e9 + 4000)
    assert floors.doubtful(CPU) is ("anew" in says)


def test_what_others_did_meanwhile_is_said(tmp_path: Path) -> None:
    floors = Floors(Settings(home=tmp_path, lock_dir=tmp_path))
    floors.keep(CPU, 0.3, [1.3])
    check = _floor_check(CPU, Calibration(floor=0.45, crowd="other work kept 1.9 of its 2 CPUs busy"), floors)
    assert check.found.endswith("other work kept 1.9 of its 2 CPUs busy")
    assert "reports use an error of 30%" in check.todo


@pytest.mark.parametrize("verdict", ["slower", "inconclusive", ""])
def test_a_cpu_says_that_it_cannot_show_a_small_change(verdict: str) -> None:
    check = _planted_check(CPU, Calibration(floor=0.01, planted_seen=0.88, planted_verdict=verdict), 0.45)
    assert (check.name, check.state) == ("planted 3%", "missing")
    assert check.found == "a CPU can't show 3%: only changes of more than 45% are called here"


def test_a_gpu_shows_it_where_its_error_is_smaller() -> None:
    seen = Calibration(floor=0.003, planted_seen=0.971, planted_verdict="slower")
    good = _planted_check(GPU, seen, 0.003)
    assert (good.state, good.found) == ("ok", "a baseline slowed by as much was called slower, 0.971x")
    seen.floor = 0.02
    assert _planted_check(GPU, seen, 0.02).state == "warn"
    assert "not timed" in _planted_check(GPU, Calibration(floor=0.003), 0.003).found


def test_a_home_that_cannot_be_written_is_a_finding(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()
    with Harness(Settings(home=home, lock_dir=tmp_path, device="cpu")) as harness:
        checks = {check.name: check for check in harness.doctor().checks}
    for name in ("FK_HOME", "sandbox", "judge"):
        assert checks[name].state == "broken"
        assert "FK_HOME" in checks[name].todo


@pytest.mark.parametrize("gpu", [False, True])
def test_nothing_is_advised_that_would_be_of_no_use_here(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Production kernels and nvcc without a GPU: the candidate could not even be compared with them."""
    monkeypatch.setattr("shutil.which", lambda *given, **named: None)
    monkeypatch.setattr("fk_core.child.baselines.base.Provider.installed", lambda self: None)
    checks = {check.name: check for check in _software(gpu=gpu)}
    for name in ("baseline vllm", "baseline flashinfer", "baseline liger", "nvcc"):
        assert checks[name].state == "missing"
        assert bool(checks[name].todo) is gpu
        assert ("only with a GPU" in checks[name].found) is not gpu
    assert checks["g++"].todo, "torch.compile and C++ extensions need it on a CPU, too"
