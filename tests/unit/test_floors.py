"""What is kept of a machine survives several writers and spoiled files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from fk_core.calibrate import Floors
from fk_core.catalog import Catalog
from fk_core.records.device import Device
from fk_core.records.report import CaseReport, Outcome, ValidateReport
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
