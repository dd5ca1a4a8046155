"""The harness: the verbs that the server, the command line and the tests use. Importing it imports no torch."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from fk_core import __version__, rights, stubs
from fk_core import validate as validation
from fk_core.calibrate import Floors, measure_floor
from fk_core.catalog import Catalog
from fk_core.child.baselines.base import provider
from fk_core.desk import Desk
from fk_core.doctor import examine
from fk_core.domain import EVERYTHING, BadDomain, declared, unknown_sizes
from fk_core.errors import (
    BadPath,
    FkError,
    HarnessError,
    JournalError,
    MachineError,
    UnknownAttempt,
)
from fk_core.hearing import Hearing
from fk_core.leases import base as lease_base
from fk_core.leases.devices import resolve, survey
from fk_core.leases.status import gpu_status
from fk_core.permits import check_allowed
from fk_core.records.device import Device, DoctorReport, GpuStatus
from fk_core.records.listing import OpsList, OpSummary, Stub
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest
from fk_core.records.task import CaseSpec, TaskSpec
from fk_core.sandbox import sweep
from fk_core.settings import Settings, load
from fk_core.source_check import Problem, check_source
from fk_core.tracking.journal import Journal
from fk_core.versions import version

log = logging.getLogger(__name__)

Progress = Callable[[str, float | None], None]


def _quiet(doing: str, share: float | None) -> None:
    """Progress that nobody watches."""


def _unqueued(ahead: int) -> None:
    """Places in the queue that nobody watches."""


def _nothing() -> None:
    """The record where nobody wants to be answered from it."""


def _sizes(cases: list[CaseSpec]) -> str:
    """Dimensions and dtypes of cases, in words."""
    sizes: dict[str, set[int]] = {}
    for case in cases:
        for name, size in case.dims.items():
            sizes.setdefault(name, set()).add(size)
    said = [f"{name} {', '.join(map(str, sorted(found)))}" for name, found in sizes.items()]
    return f"{'; '.join(said)}; dtype {', '.join(sorted({case.dtype for case in cases}))}"


def _unclear_by_others(report: ValidateReport) -> bool:
    """Whether other work on the machine kept a report from saying how fast: at another moment it may be clear. On a GPU
    such a validation is CONTENDED, and no answer to a later one either."""
    crowded = report.machine is not None and bool(report.machine.crowd)
    return crowded and report.speed.verdict == "inconclusive"


def _settled(report: ValidateReport, known: validation.Known) -> ValidateReport:
    """The answer to a submission that another process may have judged at the same time: one submission, one answer.

    Where both found the same outcome the first answer stands. Where they did not, this one says so.
    """
    if report.identical_to or not (report.outcome is Outcome.PASSED or report.blame == "candidate"):
        return report
    other = known()
    if other is None:
        return report
    if other.outcome is report.outcome:
        return other
    said = (
        f"attempt {other.identical_to} judged the same submission at the same time, with another outcome: "
        f"{other.outcome.value}; `fk validate` with `--fresh` settles which holds"
    )
    return report.model_copy(update={"warnings": [said, *report.warnings]})


class Harness:
    """Thread-safe. Making one is cheap; the first verb that needs a device starts its zygote and judge."""

    def __init__(self, settings: Settings | None = None) -> None:
        rights.check_own()
        self.settings = settings or load()
        self.catalog = Catalog()
        self.journal = Journal(self.settings)
        self.leases = lease_base.load("flock", self.settings)
        self.floors = Floors(self.settings)
        self.tuned: set[tuple[str, ...]] = set()
        """Device, operator, cases and provider for which a baseline has kept the configurations that it chose."""
        self._lock = threading.Lock()
        self._desks: dict[str, Desk] = {}
        self._run: sweep.Run | None = None
        self._closed = threading.Event()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process that was started; finished results are in the journal already."""
        self._closed.set()
        with self._lock:
            desks, self._desks = list(self._desks.values()), {}
        for desk in desks:
            desk.closing.set()
        for desk in desks:
            desk.close()
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.close()

    def device(self, spec: str = "auto") -> Device:
        return resolve(spec if spec not in ("", "auto") else self.settings.device)

    def desk(self, device: Device) -> Desk:
        """The desk of a device; its processes start on first use."""
        self._scratch()
        with self._lock:
            if self._closed.is_set():
                raise HarnessError("the harness is closed", hint="Make a new one")
            if device.uuid not in self._desks:
                self._desks[device.uuid] = Desk(self.settings, device, self._scratch)
            return self._desks[device.uuid]

    def _scratch(self) -> sweep.Run:
        """This harness's part of the scratch directory, made anew if somebody has removed it."""
        with self._lock:
            if self._closed.is_set():
                raise HarnessError("the harness is closed", hint="Make a new one")
            try:
                if self._run is None:
                    sweep.sweep(self.settings)
                    self._run = sweep.Run(self.settings)
                elif not self._run.path.is_dir():
                    log.warning("%s vanished; it is made anew", self._run.path)
                    self._run.close()
                    self._run = sweep.Run(self.settings)
            except OSError as error:
                raise HarnessError(
                    f"no scratch directory could be made in {self.settings.scratch_dir}: {error.strerror}",
                    hint="Check free space and permissions of FK_HOME",
                ) from error
            return self._run

    def warm(self) -> None:
        """Start zygote and judge of the default device, in turn and under a shared lease as any other work on it."""
        device = self.device()
        desk = self.desk(device)
        with desk.turn(self._closed), self.leases.acquire(device, purpose="warm up", cancel=self._closed):
            desk.warm(lambda: len(self.leases.queue(device.uuid).holders) <= 1)

    def measure_again(self) -> list[str]:
        """Measure the default device's own error anew, if the one that is kept is likely that of a bad moment. Says
        what went wrong."""
        device = self.device()
        return measure_floor(self, device).problems if self.floors.doubtful(device) else []

    # -- listing ---------------------------------------------------------------------------------------------------

    def list_ops(self, level: int = 0, model: str = "", query: str = "") -> OpsList:
        """Operators, narrowed by level, by a model they occur in, or by a word in name or summary."""
        found = []
        kind = self._kind()
        for name in self.catalog.names():
            spec = self.catalog.get(name)
            models = list(dict.fromkeys(c.model for c in spec.cases))
            if level and spec.level != level:
                continue
            if model and not any(model.lower() in m.lower() for m in models):
                continue
            if query and query.lower() not in f"{spec.name} {spec.summary}".lower():
                continue
            installed = {b: provider(b).installed() for b in spec.baselines}
            found.append(
                OpSummary(
                    name=spec.name,
                    level=spec.level,
                    summary=spec.summary,
                    entries=list(spec.entries),
                    models=models,
                    cases=len(spec.case_set(kind)),
                    cases_by_device={device: len(spec.case_set(device)) for device in ("cpu", "cuda")},
                    baselines_found=[b for b, v in installed.items() if v],
                    baselines_missing=[b for b, v in installed.items() if not v],
                )
            )
        return OpsList(ops=found, notes=stubs.words(kind))

    def _kind(self) -> str:
        """``cpu`` or ``cuda``: the device at hand, or the one that was asked for and is not to be had just now."""
        try:
            return self.device().kind
        except MachineError:
            return "cuda"

    def create_stub(self, op: str, dtype: str = "", out_path: str = "") -> Stub:
        """The stub of an operator; written to ``out_path`` if that is given and does not exist yet."""
        spec = self.catalog.get(op)
        device = self.device()
        stub = stubs.render(spec, device.kind, dtype=dtype, measured=self.floors.times(device, spec))
        if not out_path:
            return stub
        try:
            path = Path(out_path).expanduser()
        except RuntimeError as error:
            raise BadPath(
                f"{out_path!r} begins with the home directory of a user that this machine doesn't know",
                hint="Give an absolute path",
            ) from error
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(stub.source)
        except FileExistsError as error:
            raise BadPath(f"{path} exists", hint="Name another file; nothing is overwritten") from error
        except OSError as error:
            raise BadPath(
                f"{path} can't be written: {error.strerror}", hint="Give a path in a directory that exists"
            ) from error
        return stub.model_copy(update={"written_to": str(path)})

    def gpu_status(self) -> GpuStatus:
        with self._lock:
            desks = list(self._desks.values())
        return gpu_status(
            self.settings,
            self.leases,
            found=survey(),
            quarantined={desk.device.uuid: desk.quarantined for desk in desks if desk.quarantined},
            using={pid for desk in desks for pid in desk.pids},
        )

    def doctor(self, progress: Progress = _quiet) -> DoctorReport:
        return examine(self, progress)

    # -- validating ------------------------------------------------------------------------------------------------

    def identity(self, request: ValidateRequest, spec: TaskSpec, device: Device) -> str:
        """Everything that decides the answer: equal identities have equal answers."""
        libraries = {b: provider(b).installed() for b in spec.baselines}
        parts = {
            "source": hashlib.sha256(request.source.encode("utf-8", "replace")).hexdigest(),
            "options": request.options(),
            "task": spec.sha256,
            "fk": __version__,
            "device": [device.uuid, device.driver],
            "libraries": libraries,
            "torch": version("torch"),
            "triton": version("triton"),
            "sandbox": self.settings.sandbox,
            # What `fk doctor`, or a server that starts, has measured since decides what is called faster, and stands in
            # the report.
            "floor": self.floors.of(device),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def cached_report(self, request: ValidateRequest) -> ValidateReport | None:
        """The recorded answer to an identical submission, or None."""
        if request.fresh:
            return None
        spec = self.catalog.get(request.op)
        device = self.device(request.device)
        return self._recorded(self.identity(request, spec, device))

    def _recorded(self, identity: str) -> ValidateReport | None:
        found = self.journal.find_identical(identity)
        if found is None:
            return None
        try:
            _, report = self.journal.read(found)
        except JournalError as error:
            log.warning("the recorded answer %s can't be read, so it is worked out anew: %s", found, error)
            return None
        if report is not None and _unclear_by_others(report):
            return None
        # That attempt itself may have been answered from the record of another.
        return None if report is None else report.model_copy(update={"identical_to": report.identical_to or found})

    def validate(
        self,
        request: ValidateRequest,
        progress: Progress = _quiet,
        cancel: threading.Event | None = None,
        begun: Callable[[str], None] | None = None,
        queued: validation.Queued = _unqueued,
    ) -> ValidateReport:
        """Is it right, is it faster? Raises ``RequestError`` for what the caller can mend; the report has the rest."""
        spec = self.catalog.get(request.op)
        device = self.device(request.device)
        cases = self.catalog.select(spec, device.kind, request.cases)
        check_allowed(request.allow)
        recorded = self.cached_report(request)
        if recorded is not None:
            return recorded
        hearing, problems = self._heard(request, spec, cases, device)
        problems += check_source(spec, request.source, cases, max_bytes=self.settings.limits.source_bytes)
        if not all(p.text for p in problems):
            return validation.rejected_text(hearing, problems, self.settings)
        identity = self.identity(request, spec, device)
        attempt_id = self.journal.begin(request, identity)
        if begun is not None:
            begun(attempt_id)
        known = _nothing if request.fresh else functools.partial(self._recorded_meanwhile, identity)
        report = _settled(self._judged(hearing, problems, progress, cancel, known, queued), known)
        others = self.floors.others(device, spec, report)
        if others and not report.identical_to:
            report = report.model_copy(update={"speed": report.speed.model_copy(update={"others_timed": others})})
        report = report.model_copy(update={"attempt_id": attempt_id})
        try:
            self.journal.finish(attempt_id, report)
        except (JournalError, UnknownAttempt) as error:
            hint = error.hint if isinstance(error, JournalError) else "Something removes files from FK_HOME; exempt it"
            raise JournalError(f"{error.message}; the verdict was: {report.summary}", hint=hint) from error
        if not report.identical_to:
            self.floors.note_times(device, spec, report)
        return report

    def _recorded_meanwhile(self, identity: str) -> ValidateReport | None:
        """What another process has found of the same submission while this one waited or ran."""
        try:
            return self._recorded(identity)
        except JournalError as error:
            log.warning("the journal can't be searched for the same submission: %s", error)
            return None

    def _heard(
        self, request: ValidateRequest, spec: TaskSpec, cases: list[CaseSpec], device: Device
    ) -> tuple[Hearing, list[Problem]]:
        """The hearing on the cases that the candidate declares to support, and what is wrong with the declaration."""
        problems = []
        domain = EVERYTHING
        try:
            domain = declared(request.source, spec)
        except BadDomain as error:
            # What models ask for is said of GPUs, and the cases of a CPU are cut down.
            here = f"; the cases judged here have {_sizes(cases)}" if error.captured else ""
            problems.append(Problem(Outcome.CONTRACT_BROKEN, f"{error}{here}"))
        inside = [c for c in cases if domain.covers(c.dims, c.dtype)]
        if not inside and not problems:
            said = f"SUPPORTS leaves out every case that was asked for; these have {_sizes(cases)}"
            problems.append(Problem(Outcome.CONTRACT_BROKEN, said))
            inside, domain = cases, EVERYTHING
        outside = [c for c in cases if c not in inside]
        floor, warnings = self.floors.of(device), unknown_sizes(spec, domain)
        hearing = Hearing(request, spec, inside, device, warnings=warnings, floor=floor, domain=domain, outside=outside)
        return hearing, problems

    def _judged(
        self,
        hearing: Hearing,
        problems: list[Problem],
        progress: Progress,
        cancel: threading.Event | None,
        known: validation.Known,
        queued: validation.Queued,
    ) -> ValidateReport:
        if problems:
            return validation.rejected_text(hearing, problems, self.settings)
        try:
            desk = self.desk(hearing.device)
        except FkError as error:
            return validation.refused(hearing, error, self.settings)
        seed = int.from_bytes(os.urandom(8), "little") >> 2
        return validation.validate(
            hearing, desk, self.leases, self.settings, progress, cancel, seed=seed, known=known, queued=queued
        )
