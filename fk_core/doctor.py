"""What works on this machine, what to install for the rest, and how exact its timing is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

from fk_core.calibrate import Calibration, Floors, calibrate, time_others
from fk_core.child.baselines.base import provider, providers
from fk_core.errors import FkError
from fk_core.leases.devices import Survey, survey
from fk_core.records.device import Check, Device, DoctorReport
from fk_core.sandbox import levels

if TYPE_CHECKING:
    from fk_core.harness import Harness


def examine(harness: Harness, progress: Callable[[str, float | None], None]) -> DoctorReport:
    """Look at everything a validation needs, then time the baseline against itself."""
    devices = survey()
    checks = [*_software(gpu=bool(devices.gpus)), *_devices(devices), *_places(harness)]
    progress("trying the sandbox levels", 0.1)
    sandbox = _sandbox(harness)
    checks.append(sandbox)
    best = sandbox.found.partition(", ")[0] if sandbox.state == "ok" else ""
    report = DoctorReport(checks=checks, sandbox=best)
    try:
        device = harness.device()
        progress("starting zygote and judge", 0.2)
        harness.warm()
    except FkError as error:
        checks.append(Check(name="judge", state="broken", found=str(error), todo=error.hint))
        return report.model_copy(update={"checks": checks})
    checks.append(Check(name="judge", state="ok", found=f"answers on {device.uuid}"))
    found = calibrate(harness, device, progress=lambda doing, share: progress(doing, 0.3 + 0.7 * (share or 0)))
    checks.append(_floor_check(device, found, harness.floors))
    checks.append(_planted_check(device, found, harness.floors.of(device)))
    if device.kind == "cuda":
        for op in harness.catalog.names():
            progress(f"other baselines of {op}", 0.95)
            told = time_others(harness, device, op)
            checks += [Check(name=f"{op} by {name}", state="ok", found=said[:300]) for name, said in told.items()]
    checks += [Check(name="calibration", state="broken", found=p[:400]) for p in found.problems]
    return report.model_copy(
        update={
            "checks": checks,
            "floor": found.floor,
            "floor_cases": {case: sum(v) / len(v) for case, v in found.ratios.items()},
            "planted": found.planted,
            "planted_seen": found.planted_seen,
            "planted_verdict": found.planted_verdict,
        }
    )


def _software(*, gpu: bool) -> list[Check]:
    """``gpu``: whether there is one; without it nothing is advised that only a GPU could use."""
    checks = [Check(name="python", state="ok", found=sys.version.split()[0])]
    for name in ("torch", "triton", "mcp", "pydantic"):
        try:
            checks.append(Check(name=name, state="ok", found=metadata.version(name)))
        except metadata.PackageNotFoundError:
            checks.append(Check(name=name, state="missing", found="not installed", todo=f"pip install {name}"))
    for tool, needed in (("g++", "C++ extensions, torch.compile on a CPU"), ("nvcc", "CUDA C++ candidates")):
        path = shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")
        use = f"Install {tool}; without it no {needed}"
        checks.append(_tool(tool, path or "", "not found", use, useless=tool == "nvcc" and not gpu))
    for name in providers():
        source = provider(name)
        use = f"pip install {source.distributions[0]} to compare against it"
        checks.append(_tool(f"baseline {name}", source.installed() or "", "not installed", use, useless=not gpu))
    return checks


def _tool(name: str, found: str, absent: str, todo: str, *, useless: bool) -> Check:
    """What may be missing, and need not be mentioned twice where it would be of no use."""
    if found:
        return Check(name=name, state="ok", found=found)
    return Check(
        name=name,
        state="missing",
        found=f"{absent}; of use only with a GPU" if useless else absent,
        todo="" if useless else todo,
    )


def _devices(found: Survey) -> list[Check]:
    if not found.gpus:
        todo = "Times are indicative and nothing can win; run on a machine with a GPU for verdicts on speed"
        return [Check(name="gpu", state="missing", found=found.note or "none", todo=todo)]
    checks = []
    for gpu in found.gpus:
        exclusive = "exclusive" in gpu.compute_mode.lower()
        todo = "Set the compute mode to DEFAULT: candidate and judge need a context each" if exclusive else ""
        what = f"{gpu.name}, driver {gpu.driver}, sm_{gpu.compute_capability.replace('.', '')}, {gpu.compute_mode}"
        checks.append(Check(name=f"gpu {gpu.index}", state="broken" if exclusive else "ok", found=what, todo=todo))
    return checks


def _places(harness: Harness) -> list[Check]:
    checks = []
    for name, path in (("FK_HOME", harness.settings.home), ("FK_LOCK_DIR", harness.settings.lock_dir)):
        try:
            path.mkdir(parents=True, exist_ok=True)
            good = os.access(path, os.W_OK | os.X_OK)
        except OSError:
            good = False
        todo = "" if good else f"Point {name} to a directory that this user can write to"
        checks.append(Check(name=name, state="ok" if good else "broken", found=str(path), todo=todo))
    return checks


def _sandbox(harness: Harness) -> Check:
    """The levels that hold, best first."""
    try:
        available = levels.available(harness.settings)
    except FkError as error:
        return Check(name="sandbox", state="broken", found=error.message, todo=error.hint)
    best = available[0] if available else ""
    todo = "" if best == "namespaces" else "Run as root or allow unprivileged user namespaces for the strongest level"
    return Check(name="sandbox", state="ok" if best else "broken", found=", ".join(available), todo=todo)


def _floor_check(device: Device, found: Calibration, floors: Floors) -> Check:
    """``floors``: what is kept by now, which may be an error of a better moment."""
    floor, name = found.floor, "A/A floor"
    usual = floors.settings.timing.usual_floor(device.kind)
    if floor is None:
        return Check(name=name, state="broken", found="not measured")
    good = floor <= usual
    what = f"{100 * floor:.2f}%: the error of a kernel timed against itself, nine times in ten not more"
    if device.kind == "cpu":
        what += f"; a CPU's is taken to be at least {usual:.0%}" if good else ""
        todo = "The machine is busy: end other work and run `fk doctor` again"
    else:
        todo = f"Look for other work on the GPU, or lock its clocks: it can't hold {usual:.0%}"
    if found.crowd:
        what += f"; {found.crowd}"
    if not good:
        todo += f"; reports use an error of {100 * floors.of(device):.3g}%, "
        again = "and a server that starts later than an hour from now measures it anew"
        todo += again if floors.bad(device) else "measured at a better moment"
    return Check(name=name, state="ok" if good else "warn", found=what, todo="" if good else todo)


def _planted_check(device: Device, found: Calibration, in_use: float) -> Check:
    """``in_use``: the error that reports of this machine allow for."""
    name = f"planted {found.planted:.0%}"
    if device.kind == "cpu":
        said = f"a CPU can't show {found.planted:.0%}: only changes of more than {in_use:.0%} are called here"
        return Check(name=name, state="missing", found=said)
    seen = f"{found.planted_verdict}, {found.planted_seen:.3f}x" if found.planted_seen is not None else "not timed"
    # Where the machine's own error is as large as what was planted, being called slower says nothing.
    if found.planted_verdict == "slower" and found.floor is not None and found.floor < found.planted / 2:
        return Check(name=name, state="ok", found=f"a baseline slowed by as much was called {seen}")
    said = f"a baseline slowed by as much was found {seen}"
    return Check(name=name, state="warn", found=said, todo="Small changes do not show here")
