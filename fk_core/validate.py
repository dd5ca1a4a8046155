"""One validation from request to report; read :class:`Validation` as its own table of contents."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from fk_core import blame, prebuild
from fk_core.conclude import conclude, machine
from fk_core.correctness import Correctness, left_out
from fk_core.desk import Desk
from fk_core.errors import (
    Cancelled,
    FkError,
    HarnessError,
    JudgeDied,
    LeaseTimeout,
    MachineError,
    TaskBroken,
    ZygoteDied,
)
from fk_core.fault import CandidateFault
from fk_core.hearing import Hearing
from fk_core.judge_session import JudgeSession, NoMemory, Ticket
from fk_core.leases.base import Lease, LeaseBackend, waiting
from fk_core.leases.devices import shared_nvml
from fk_core.leases.foreign import Registry
from fk_core.leases.nvml import NoNvml
from fk_core.measure import Stopwatch
from fk_core.neighbours import Contended, Neighbours, strangers
from fk_core.records.device import Holder
from fk_core.records.report import Outcome, ValidateReport
from fk_core.sandbox import trees
from fk_core.sandbox.launch import Child
from fk_core.settings import Settings
from fk_core.source_check import Problem
from fk_core.stop import Stop
from fk_core.trial import Progress, Trial

log = logging.getLogger(__name__)

Spawn = Callable[[], tuple[Child, Path]]
Known = Callable[[], ValidateReport | None]
"""The recorded answer to the same submission, if there is one by now."""
Queued = Callable[[int], None]
"""Told how many come before this one, whenever that changes, and 0 once the device is to be had."""

TRIES = 2
"""A fault of the harness is tried once more, in the open: the report says so."""
_ROOM_BYTES = 16 << 20
"""Free space of FK_HOME without which no candidate is started."""


def validate(
    hearing: Hearing,
    desk: Desk,
    leases: LeaseBackend,
    settings: Settings,
    progress: Progress,
    cancel: Event | None,
    *,
    spawn: Spawn | None = None,
    provider: str = "",
    plant: bool = False,
    seed: int,
    known: Known = lambda: None,
    queued: Queued = lambda ahead: None,
) -> ValidateReport:
    """Run the candidate on every case and decide. Whatever goes wrong ends up in the report, not as an exception.

    ``spawn`` starts another process than the candidate (a twin); ``provider`` names another baseline than the first;
    ``plant`` slows the baseline down by about 3%. ``known`` is asked once more when the device is to be had: who held
    it may have judged the very same.
    """
    began = time.monotonic()
    with Stop(cancel, desk.closing) as stop:
        run = Validation(hearing, desk, leases, settings, progress, stop, spawn, provider, plant, seed, known, queued)
        run.run()
    if run.answer is not None:
        return run.answer
    hearing.machine = machine(hearing, desk.versions)
    hearing.seconds["total"] = time.monotonic() - began
    return conclude(hearing, settings)


def rejected_text(hearing: Hearing, problems: list[Problem], settings: Settings) -> ValidateReport:
    """The report on a source that can't even be tried."""
    hearing.refused(problems[0].outcome, "\n".join(p.message for p in problems))
    hearing.seconds["total"] = 0.0
    return conclude(hearing, settings)


def refused(hearing: Hearing, error: FkError, settings: Settings) -> ValidateReport:
    """The report where the harness could not even begin."""
    hearing.ended(_outcome_of(error), str(error))
    return conclude(hearing, settings)


@dataclass
class Validation:
    h: Hearing
    desk: Desk
    leases: LeaseBackend
    settings: Settings
    progress: Progress
    stop: Stop
    spawn: Spawn | None
    provider: str
    plant: bool
    seed: int
    known: Known
    queued: Queued
    tried: int = 0
    answer: ValidateReport | None = None
    """That of the record, where there was no need to run."""
    prebuilding: prebuild.Prebuild | None = None

    # -- what is tried, and what becomes of it ---------------------------------------------------------------------

    def run(self) -> None:
        """Try, and try once more where the first failure was not, or not surely, the candidate's."""
        alone = False
        while True:
            self.tried += 1
            why, outcome = "", Outcome.HARNESS_FAULT
            try:
                self._try(alone=alone)
                return
            except blame.TryAgain as doubt:
                why, alone = doubt.why, alone or doubt.alone
            except CandidateFault as fault:
                self.h.failed(fault)
                return
            except (JudgeDied, ZygoteDied, blame.CandidateLost) as error:
                self.h.ended(outcome, str(error))
                why = error.message
            except FkError as error:
                self.h.ended(_outcome_of(error), str(error))
            except Exception as error:
                # Whatever it is, the candidate is not to blame for it, and the caller gets a report.
                log.exception("a validation failed")
                self.h.ended(outcome, f"the harness failed with {type(error).__name__}: {error}")
            if self.stop.why:
                self._stopped()
                return
            if not why or self.tried >= TRIES:
                return
            log.warning("%s; tried once more", why)
            self.h.begin()
            self.h.warnings.append(f"{why}; this report is of a second try")

    def _stopped(self) -> None:
        if self.stop.why == "cancelled":
            self.h.ended(Outcome.CANCELLED, "cancelled by the caller")
        elif self.stop.why == "closed":
            self.h.ended(Outcome.CANCELLED, "the harness was closed meanwhile")
        else:
            self._late()

    def _late(self) -> None:
        """The whole took too long: whoever used most of the time is to blame."""
        limit = self.settings.limits.total_s
        used = {who: sum(s for k, s in self.h.detail.items() if k.startswith(who)) for who in ("candidate", "judge")}
        said = f"the validation took longer than {limit:g} s, {used['candidate']:.0f} s of them in the candidate"
        if used["candidate"] > limit / 2:
            self.h.failed(CandidateFault(Outcome.TIMED_OUT, said))
        else:
            self.h.ended(Outcome.HARNESS_FAULT, f"{said} and {used['judge']:.0f} s in the judge")

    # -- one try: turn, lease, judge, candidate --------------------------------------------------------------------

    def _try(self, *, alone: bool) -> None:
        """One try. What it holds is given back when the report can be written, or before another try."""
        held = contextlib.ExitStack()
        try:
            self._hold(held, alone=alone)
        except CandidateFault:
            self.desk.give_back(held)
            raise
        except BaseException:
            held.close()
            raise
        self.desk.give_back(held)

    def _hold(self, held: contextlib.ExitStack, *, alone: bool) -> None:
        """The order matters: see ``fk_core.desk``. What is taken on the way is left to ``held``."""
        device, began = self.h.device, time.monotonic()
        self.progress("waiting for the device", None)
        held.enter_context(self.desk.turn(self.stop.event, self._behind))
        self.h.add("queue", time.monotonic() - began)
        lease = self.leases.acquire(
            device,
            "exclusive" if alone else "shared",
            purpose=f"validate {self.h.spec.name}",
            cancel=self.stop.event,
            on_wait=self._in_line,
            on_overdue=self.stop.late,
        )
        held.enter_context(lease)
        self.queued(0)
        try:
            self.answer = self.known()
            if self.answer is None:
                self._on_the_device(lease, held)
        finally:
            self.h.add("gpu_exclusive", lease.exclusive_s)
            self.h.add("queue", lease.waited_s)

    def _behind(self, ahead: int) -> None:
        """Other jobs of this process have the device or wait for it."""
        self.queued(ahead)
        self.progress(f"waiting: {ahead} {'job is' if ahead == 1 else 'jobs are'} ahead", None)

    def _in_line(self, place: int, holders: list[Holder]) -> None:
        """Other processes have the device or wait for it."""
        self.queued(place)
        self.progress(waiting(place, holders), None)

    def _on_the_device(self, lease: Lease, held: contextlib.ExitStack) -> None:
        with contextlib.ExitStack() as stack:
            with self.h.clock("build"):
                self.progress("starting", None)
                judge = held.enter_context(self.desk.session(self.stop.event, self._alone))
                opening = self._open(judge)
                child, scratch = stack.enter_context(self._candidate(held, lease))
            trial = Trial(child, scratch, judge, self.settings, self.stop.event)
            trial.domain = self.h.domain
            try:
                self._trial(trial, judge, opening, lease)
            except CandidateFault as fault:
                raise self._reconsidered(fault, child, scratch) from fault
            except NoMemory as error:
                found = blame.filled(child, device=self.h.device, nvml=shared_nvml())
                if found is None:
                    raise
                raise self._reconsidered(found, child, scratch) from error
            finally:
                self.h.warnings += trial.warnings
                self.h.detail = {k: round(v, 4) for k, v in (trial.detail | judge.detail).items()}

    def _reconsidered(self, fault: CandidateFault, child: Child, scratch: Path) -> Exception:
        if self.stop.why:
            return Cancelled("stopped")
        return blame.reconsider(
            fault,
            child,
            scratch,
            self.settings.home,
            last=self.tried >= TRIES,
            shared=not self.desk.cpu and not self._alone(),
        )

    def _alone(self) -> bool:
        """Whether nobody else, with a lease or without, is on the device."""
        if len(self.leases.queue(self.h.device.uuid).holders) > 1:
            return False
        if self.desk.cpu:
            return True
        try:
            return not strangers(Registry(self.settings), shared_nvml(), self.h.device.uuid, self.desk.pids)()
        except MachineError:
            return False

    @contextlib.contextmanager
    def _candidate(self, held: contextlib.ExitStack, lease: Lease) -> Iterator[tuple[Child, Path]]:
        """The candidate's process, watched as long as the block lasts; it ends, with all it started, with ``held``."""
        room = shutil.disk_usage(self.settings.home).free if self.settings.home.is_dir() else _ROOM_BYTES
        if room < _ROOM_BYTES:
            raise HarnessError(
                f"the disk of FK_HOME ({self.settings.home}) has {room >> 20} MiB left; {_ROOM_BYTES >> 20} are needed",
                hint="Make room there, then submit the same source again",
            )
        request = self.h.request
        spawn = self.spawn or (lambda: self.desk.candidate(request.source, allow=list(request.allow)))
        child, scratch = spawn()
        held.callback(trees.remove, scratch)
        held.callback(child.kill)
        self.h.sandbox = child.level or ""
        try:
            with self.stop.watching(child, self.settings.limits.total_s, lambda: lease.waited_s):
                yield child, scratch
        finally:
            self.h.log_tail = _quoted(child.log_tail())

    # -- the trial -------------------------------------------------------------------------------------------------

    def _trial(self, trial: Trial, judge: JudgeSession, opening: Ticket, lease: Lease) -> None:
        stopwatch = Stopwatch(
            trial, judge, self.settings.timing, self.h.floor, self.desk.cpu, self.progress, self._throttled
        )
        try:
            with self.h.clock("build"):
                self._build(trial, judge, opening, stopwatch)
            calls = Correctness(trial, self.h.reports, self.progress)
            with self.h.clock("correctness"):
                calls.make()
            with self.h.clock("timing"), calls.judged_first():
                stopwatch.capture(calls.judge_some)
            with self.h.clock("correctness"):
                calls.judge_all()
                self.h.flags = judge.ask("flags").body["flags"]
                self._end_prebuild()
            self.h.correct()
            timing = self.h.clock("timing", lambda: lease.waited_s)
            with timing, self.desk.launchers.paused(), self._undisturbed(trial, lease):
                measured = stopwatch.all_cases(lease)
                self._crowded(trial)
            with self.h.clock("timing"):
                trial.finish(stopwatch.audits.judge_one)
                stopwatch.audits.judge_all()
            self.h.measured = measured
            judge.post("close")  # it forgets the job while the candidate's process ends
        finally:
            try:
                self._end_prebuild()
            finally:
                stopwatch.close()

    def _open(self, judge: JudgeSession) -> Ticket:
        """Have the judge plan the job."""
        return judge.post(
            "open",
            task=self.h.spec.model_dump(mode="json"),
            cases=[c.model_dump(mode="json") for c in self.h.cases],
            seed=self.seed + self.tried,
            provider=self.provider,
            plant=self.plant,
            brief=self.spawn is not None,
        )

    def _build(self, trial: Trial, judge: JudgeSession, opening: Ticket, stopwatch: Stopwatch) -> None:
        """Judge and candidate make ready, at the same time where neither needs the other."""
        self.progress("building", None)
        loading = trial.begin_load(list(dict.fromkeys(c.entry for c in self.h.cases)))
        self._prebuild(trial)
        opened = judge.collect_frame(opening, "open")
        try:
            self.h.baseline = f"{opened.body['baseline']['name']}: {opened.body['baseline']['what']}"
            keys = {p["case_id"]: k for p, k in zip(opened.body["probes"], opened.body["keys"], strict=True)}
            trial.leave = left_out(trial.domain, opened.body["probes"])
            if self.prebuilding is not None:
                self.prebuilding.build(prebuild.needed(opened.body["builds"], trial.leave))
            stopwatch.plan(self.h.cases, keys)

            def work() -> bool:
                return trial.ahead(answers=False) or stopwatch.baseline() or trial.ahead(answers=True)

            trial.end_load(loading, work)
            if self.prebuilding is not None:
                while not self.prebuilding.has_cases() and work():
                    trial.check()
                self.prebuilding.wait_for_cases()
        except BaseException:
            opened.close_fds()
            raise
        trial.open(opened)

    def _prebuild(self, trial: Trial) -> None:
        """Kernels are compiled while the candidate starts; those of later modules go on being compiled meanwhile."""
        source = self.h.request.source
        if self.spawn is None and prebuild.worthwhile(source, self.desk):
            self.prebuilding = prebuild.Prebuild(self.desk, source, trial.scratch, trial.child.uid, self.stop.event)
            trial.before_make = self.prebuilding.before_make

    def _end_prebuild(self) -> None:
        prebuilding, self.prebuilding = self.prebuilding, None
        if prebuilding is not None:
            prebuilding.close()

    def _throttled(self) -> tuple[str, ...]:
        """What holds the GPU's clocks down at the moment."""
        if self.desk.cpu:
            return ()
        try:
            clocks = shared_nvml().clocks(self.h.device.uuid)
        except (MachineError, NoNvml) as error:
            self.h.warnings.append(f"the clocks could not be read: {error}")
            return ()
        if clocks.power_capped:
            self.h.warnings.append("the GPU ran under its power cap while cases were timed")
        self.h.clocks = f"SM {clocks.sm_mhz} MHz, memory {clocks.memory_mhz} MHz as found, not locked"
        return clocks.throttled

    def _crowded(self, trial: Trial) -> None:
        """On a CPU: where others had too much of it, less is told from times."""
        t = self.settings.timing
        self.h.crowd = trial.crowd.told(t.crowd_share, t.crowd_spare) if self.desk.cpu else ""
        self.h.crowd_floor = t.crowd_floor

    @contextlib.contextmanager
    def _undisturbed(self, trial: Trial, lease: Lease) -> Iterator[None]:
        """Raises ``Contended`` where somebody without a lease computed on the GPU while this one timed."""
        if self.desk.cpu:
            yield
            return
        using = self.desk.pids | {trial.child.pid}
        look = strangers(Registry(self.settings), shared_nvml(), self.h.device.uuid, using)
        neighbours = Neighbours(look, lambda: lease.mode == "exclusive" and lease.held)
        with neighbours:
            yield
        if neighbours.blind:
            self.h.warnings.append(neighbours.blind)


def _outcome_of(error: FkError) -> Outcome:
    if isinstance(error, Cancelled):
        return Outcome.CANCELLED
    if isinstance(error, LeaseTimeout):
        return Outcome.NO_GPU_IN_TIME
    if isinstance(error, Contended):
        return Outcome.CONTENDED
    if isinstance(error, MachineError):
        return Outcome.GPU_FAULT
    return Outcome.UNTESTABLE if isinstance(error, TaskBroken) else Outcome.HARNESS_FAULT


def _quoted(text: str) -> str:
    """The candidate's own output: never an instruction, only its end, and nothing that moves a terminal's cursor."""
    return "".join(ch if ch in "\n\t" or ch.isprintable() else "?" for ch in text[-1500:])
