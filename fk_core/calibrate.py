"""The machine's own error, measured: a baseline timed against itself, and against itself slowed by a known share.

Kept per machine, GPU, driver and torch, with the times of the baselines that validations have measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fk_core import validate as validation
from fk_core.child.baselines.base import production
from fk_core.child.baselines.base import provider as provider_of
from fk_core.filelock import LockBusy, mutex
from fk_core.hearing import Hearing
from fk_core.records.device import Device
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from fk_core.records.task import TaskSpec
from fk_core.settings import Settings
from fk_core.versions import version

if TYPE_CHECKING:
    from fk_core.harness import Harness

LEAST, MOST = 0.002, 0.99
QUANTILE = 0.9
_LOCK_S = 5.0
CALIBRATION_OP = "rms_norm"
_DOUBT_S = 3600.0
"""So long an error stands that was measured at a bad moment, unless somebody asks for a new one."""


class Floors:
    """What is kept of each machine; small JSON files that are replaced whole."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def of(self, device: Device) -> float:
        """A/A floor as a fraction: measured, or the default until it is."""
        found, timing = self.measured(device), self.settings.timing
        floor = timing.default_floor if found is None else found
        return max(floor, timing.cpu_floor) if device.kind == "cpu" else floor

    def measured(self, device: Device) -> float | None:
        found = _number(self._read(device).get("floor"))
        return found if found is not None and found < 1 else None

    def keep(self, device: Device, floor: float, ratios: list[float], *, crowded: bool = False) -> None:
        """``crowded``: others used the machine meanwhile. Such an error takes the place of a larger one only, or of
        none; of a smaller one it moves the time, so that a machine that stays busy is not measured at every start."""
        new = {"floor": min(floor, MOST), "ratios": ratios, "crowded": crowded, "measured": round(time.time())}

        def better(kept: Mapping[str, Any]) -> dict[str, Any]:
            known = _number(kept.get("floor"))
            return {"measured": new["measured"]} if crowded and known is not None and known <= floor else new

        self._update(device, better)

    def bad(self, device: Device) -> bool:
        """Whether the error that is kept is larger than a sound machine's, or was measured beside other work."""
        kept = self._read(device)
        floor = _number(kept.get("floor"))
        if floor is None:
            return False
        return bool(kept.get("crowded")) or floor > self.settings.timing.usual_floor(device.kind)

    def doubtful(self, device: Device) -> bool:
        """Whether it is bad and nobody has measured for an hour: then it is worth measuring once more."""
        at = _number(self._read(device).get("measured")) or 0.0
        return self.bad(device) and time.time() - at >= _DOUBT_S

    def times(self, device: Device, spec: TaskSpec) -> dict[str, tuple[float | None, float | None]]:
        """Case id -> (floor_us, baseline_us), as validations of this task measured them here."""
        kept = _mapping(_mapping(self._read(device).get("times")).get(spec.sha256))
        rows = {case: row for case, row in kept.items() if isinstance(row, list) and len(row) == 2}
        return {case: (_number(row[0]), _number(row[1])) for case, row in rows.items()}

    def note_times(self, device: Device, spec: TaskSpec, report: ValidateReport) -> None:
        rows = {c.id: [c.floor_us, c.baseline_us] for c in report.cases if c.baseline_us is not None}
        if rows:
            self._update(device, lambda kept: {"times": _with(kept.get("times"), spec, rows)})

    def note_others(self, device: Device, spec: TaskSpec, provider: str, report: ValidateReport) -> None:
        """Keep how fast another provider is, case by case, against the baseline."""
        rows = {c.id: c.speedup for c in report.cases if c.speedup is not None}
        if rows:
            row = {provider: {"against": report.speed.baseline, "cases": rows}}
            self._update(device, lambda kept: {"others": _with(kept.get("others"), spec, row)})

    def others(self, device: Device, spec: TaskSpec, report: ValidateReport) -> dict[str, float]:
        """Geometric-mean speedup of a report's candidate over each other provider, from the record."""
        found = {}
        of_task = _mapping(_mapping(self._read(device).get("others")).get(spec.sha256))
        for name, kept in ((name, _mapping(row)) for name, row in of_task.items()):
            if kept.get("against") != report.speed.baseline:
                continue
            known = {case: _number(ratio) for case, ratio in _mapping(kept.get("cases")).items()}
            logs = [math.log(c.speedup / ratio) for c in report.cases if c.speedup and (ratio := known.get(c.id))]
            if logs and len(logs) == len(report.cases):
                found[name] = math.exp(sum(logs) / len(logs))
        return found

    def _path(self, device: Device) -> Path:
        parts = [device.uuid, device.driver, version("torch"), os.uname().nodename]
        name = hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]
        return self.settings.cache_dir / "machines" / f"{name}.json"

    def _read(self, device: Device) -> dict[str, Any]:
        try:
            found = json.loads(self._path(device).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _update(self, device: Device, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        """Put what ``change`` makes of the record into it; processes that share the machine take turns."""
        path = self._path(device)
        # What is kept here only saves measuring again: failing to keep it must not fail the work.
        with contextlib.suppress(OSError, LockBusy):
            path.parent.mkdir(parents=True, exist_ok=True)
            with mutex(path.with_suffix(".lock"), _LOCK_S):
                kept = self._read(device)
                _replace(path, json.dumps(kept | change(kept)))


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def _with(kept: object, spec: TaskSpec, rows: dict[str, Any]) -> dict[str, Any]:
    """The rows of each task, with these added to those of one."""
    tasks = _mapping(kept)
    return tasks | {spec.sha256: _mapping(tasks.get(spec.sha256)) | rows}


def _number(value: Any) -> float | None:
    """A number that can be a time or a share; a record that something spoiled is no record."""
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
    return float(value) if right else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclass
class Calibration:
    floor: float | None = None
    ratios: dict[str, list[float]] = field(default_factory=dict)
    planted: float = 0.03
    planted_seen: float | None = None
    planted_verdict: str = ""
    problems: list[str] = field(default_factory=list)
    crowd: str = ""
    """What others did meanwhile, see ``records.report.Machine``."""


def run_twin(
    harness: Harness,
    op: str,
    *,
    device: Device,
    cases: str = "default",
    provider: str = "",
    against: str = "",
    plant: Literal["", "candidate", "baseline"] = "",
    floor: float | None = None,
    progress: Callable[[str, float | None], None] = lambda doing, share: None,
) -> ValidateReport:
    """Validate ``provider`` (by default the baseline) in the candidate's place. Not journaled.

    ``against`` names the other side, by default the same provider; ``plant`` slows one side by about 3%. Where a
    provider chooses configurations by timing them, a run that does not count comes first in each harness: both sides
    would choose for themselves in it, and on an H200 the two differed by up to 19% of one case.
    """
    spec = harness.catalog.get(op)
    chosen = harness.catalog.select(spec, device.kind, cases)
    desk = harness.desk(device)
    if not provider:
        first = chosen[0]
        found = production(op, first.entry, first.form, first.dtype, device.kind, spec.baselines)
        provider = found.name if found else "torch_eager"
    request = ValidateRequest(op=op, source=f"# {provider} in the candidate's place", cases=cases)

    def once() -> ValidateReport:
        hearing = Hearing(request, spec, chosen, device, floor=harness.floors.of(device) if floor is None else floor)
        return validation.validate(
            hearing,
            desk,
            harness.leases,
            harness.settings,
            progress,
            None,
            spawn=lambda: desk.twin(spec, provider, plant=plant == "candidate"),
            provider=against or provider,
            plant=plant == "baseline",
            seed=int.from_bytes(os.urandom(8), "little") >> 1,
        )

    names = {name for name in (provider, against or provider) if provider_of(name).tunes}
    untuned = {(device.uuid, op, cases, name) for name in names} - harness.tuned
    if untuned and device.kind == "cuda" and once().outcome is Outcome.PASSED:
        harness.tuned |= untuned
    return once()


def calibrate(
    harness: Harness,
    device: Device,
    *,
    repeats: int = 3,
    progress: Callable[[str, float | None], None] = lambda doing, share: None,
) -> Calibration:
    """A/A error over a few cases and repeats, and whether a planted 3% is seen. Keeps the floor."""
    found = measure_floor(
        harness, device, repeats=repeats, progress=lambda doing, share: progress(doing, share * repeats / (repeats + 1))
    )
    progress("the baseline against itself with a planted slow-down", repeats / (repeats + 1))
    planted = run_twin(harness, CALIBRATION_OP, device=device, cases="quick", plant="candidate")
    if planted.outcome is Outcome.PASSED:
        found.planted_seen = planted.speed.speedup
        found.planted_verdict = planted.speed.verdict
    else:
        found.problems.append(planted.summary)
    return found


def measure_floor(
    harness: Harness,
    device: Device,
    *,
    repeats: int = 3,
    progress: Callable[[str, float], None] = lambda doing, share: None,
) -> Calibration:
    """A/A error over a few cases and repeats. Keeps it, see :meth:`Floors.keep`, unless the harness is closed
    meanwhile."""
    found = Calibration()
    for number in range(repeats):
        progress(f"the baseline against itself, {number + 1} of {repeats}", number / repeats)
        report = run_twin(harness, CALIBRATION_OP, device=device, cases="quick")
        if report.outcome is not Outcome.PASSED:
            found.problems.append(report.summary)
        if report.outcome is Outcome.CANCELLED:
            return found
        if report.outcome is not Outcome.PASSED:
            continue
        found.crowd = found.crowd or (report.machine.crowd if report.machine is not None else "")
        for case in report.cases:
            if case.speedup is not None:
                found.ratios.setdefault(case.id, []).append(case.speedup)
    errors = sorted(abs(math.log(r)) for values in found.ratios.values() for r in values)
    if errors:
        place = min(len(errors) - 1, math.ceil(QUANTILE * len(errors)) - 1)
        found.floor = max(LEAST, errors[place])
        ratios = [r for v in found.ratios.values() for r in v]
        harness.floors.keep(device, found.floor, ratios, crowded=bool(found.crowd))
    return found


def time_others(harness: Harness, device: Device, op: str) -> dict[str, str]:
    """Time every other installed provider of an operator against its baseline; later reports use the ratios."""
    spec = harness.catalog.get(op)
    names = [b for b in spec.baselines if provider_of(b).installed()]
    said = {}
    for name in names[1:]:
        report = run_twin(harness, op, device=device, provider=name, against=names[0])
        said[name] = report.summary
        if report.outcome is Outcome.PASSED:
            harness.floors.note_others(device, spec, name, report)
    return said
