"""The harness's desk at one device: a warm zygote, a warm judge, and the candidates that sit in front of it.

One job at a time has the judge: it takes the :meth:`Desk.turn` first, a lease then, and a :meth:`Desk.session` last.
In that order nobody who holds a lease waits for somebody who queues for one. A zygote or judge that died is replaced
before the next job. A device that does not recover after a job is quarantined until a later probe finds it well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fk_core import alive, catalog
from fk_core.child.baselines.base import policy_libraries
from fk_core.errors import DeviceBroken, FkError, HarnessError, ZygoteDied
from fk_core.judge_session import JudgeSession
from fk_core.launcher_stock import LauncherStock
from fk_core.leases.foreign import Registration, Registry
from fk_core.records.device import Device
from fk_core.records.task import TaskSpec
from fk_core.sandbox import levels, trees, triton_stubs
from fk_core.sandbox.launch import Child, launch
from fk_core.sandbox.sweep import Run
from fk_core.sandbox.triton_cache import copy_cache
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
from fk_core.turns import Turns

log = logging.getLogger(__name__)

RETURN_S = 5.0
"""The driver frees a dead process's memory within a fraction of a second; this long it may take."""
SLACK_BYTES = 1 << 30
"""What a judge may have kept of a job: loaded kernels, workspaces of libraries."""
_CLOSE_S = 3.0
_SPIN_S, _SPIN_CORES = 0.003, 8


class Desk:
    """Zygote and judge of one device. Thread-safe. ``run`` gives the scratch of this harness."""

    def __init__(self, settings: Settings, device: Device, run: Callable[[], Run]) -> None:
        self.settings, self.device = settings, device
        self.versions: dict[str, Any] = {}
        self.level = ""
        self.cpu = device.kind == "cpu"
        self.quarantined = ""
        """Why the device is not used until it is found well again."""
        self.closing = threading.Event()
        self.launchers = LauncherStock(settings, self._launcher_builder, lambda name: self.run.scratch(name))
        self._run = run
        self._zygote: Zygote | None = None
        self._judge: Child | None = None
        self._registrations: list[Registration] = []
        self._expected_bytes: int | None = None
        self._doubted = False
        """Whether the last job left no judge to ask how the device is."""
        self._starting = threading.Lock()
        self._turns = Turns(f"the judge of {device.uuid}")

    @property
    def run(self) -> Run:
        return self._run()

    @property
    def torch_device(self) -> str:
        # CUDA_VISIBLE_DEVICES of the children names this one GPU.
        return "cpu" if self.cpu else "cuda:0"

    # -- zygote and judge ------------------------------------------------------------------------------------------

    def warm(self, alone: Callable[[], bool] = lambda: True) -> None:
        """Start zygote and judge if they are not alive, and find out whether a quarantined device is well again.

        ``alone`` says whether nobody else uses the device, whose memory could be mistaken for a candidate's.
        """
        with self._starting:
            if self.closing.is_set():
                raise HarnessError("the harness is closed", hint="Make a new one")
            if self.quarantined or self._doubted:
                self._heal(alone)
            self._start()

    def _start(self) -> None:
        if self._zygote is None or not self._zygote.alive() or alive.started_ticks(self._zygote.pid) is None:
            self._stop()
            capability = self.device.compute_capability.replace(".", "")
            zygote = Zygote(self.settings, interpret=self.cpu, target=int(capability) if capability else None)
            try:
                with _disk_faults("the trusted caches"):
                    self.versions = zygote.start()
            except BaseException:
                zygote.close()
                raise
            self._zygote = zygote
            if len(self.versions["threads"]) > 1:
                log.warning(
                    "the zygote has threads besides its own, so its forks may hang: %s", self.versions["threads"]
                )
        if not self.level:
            self.level = levels.choose(self.settings)
        if self._judge is None or not self._judge.alive() or alive.started_ticks(self._judge.pid) is None:
            self._drop_judge()
            self._judge = self._launch("judge", self._on_device(), level=None, scratch=None)
            if not self.cpu:
                registry = Registry(self.settings)
                self._registrations = [registry.register(), registry.register(self._judge.pid)]
                self._first_answer()
                triton_stubs.harvest(self.settings)

    def _first_answer(self) -> None:
        """A judge that can't even start its context tells of a broken device."""
        assert self._judge is not None
        try:
            JudgeSession(self, self._judge).ask("machine")
        except FkError as error:
            self.quarantined = self.quarantined or f"a trusted probe failed: {error.message}"
            self._drop_judge()
            raise DeviceBroken(
                f"{self.device.uuid} fails a trusted probe: {error.message}",
                hint="Run nvidia-smi and look for Xid errors in dmesg; it is probed again before the next job",
            ) from error

    def forget(self, judge: Child) -> None:
        """A judge that is of no use any more; the next job gets a new one."""
        judge.kill()
        if self._judge is judge:
            self._judge = None

    def _drop_judge(self) -> None:
        for registration in self._registrations:
            registration.release()
        self._registrations = []
        if self._judge is not None:
            self._judge.kill()
            self._judge = None

    def _stop(self) -> None:
        self._drop_judge()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def close(self) -> None:
        """End the job at hand and every process; no job starts after this."""
        self.closing.set()
        self.launchers.close()
        self._turns.idle_within(_CLOSE_S)
        with self._starting:
            self._stop()

    @property
    def pids(self) -> set[int]:
        """Trusted processes of ours that have a context on the device."""
        judge = self._judge
        return set() if judge is None or self.cpu else {judge.pid}

    # -- one job ---------------------------------------------------------------------------------------------------

    def turn(
        self, cancel: threading.Event | None = None, on_wait: Callable[[int], None] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """This process's turn at the device, in the order of asking."""
        return self._turns.turn(timeout_s=self.settings.leasing.queue_s, cancel=cancel, on_wait=on_wait)

    @contextlib.contextmanager
    def session(
        self, cancel: threading.Event | None = None, alone: Callable[[], bool] = lambda: True
    ) -> Iterator[JudgeSession]:
        """The judge for one job, by whoever has the turn and a lease. The candidate's process has to end inside.

        Afterwards the device is looked at: does the judge still answer, and has the memory come back? ``alone`` as in
        :meth:`warm`.
        """
        self.warm(alone)
        judge = self._judge
        if judge is None:
            raise HarnessError("the judge was closed while a job began", hint="Submit it again")
        session = JudgeSession(self, judge, cancel)
        before = self._free_bytes(session)
        try:
            yield session
        finally:
            session.end()
            self._examine(before, alone)

    def give_back(self, held: contextlib.ExitStack) -> None:
        """End a job whose report can be written: the candidate's process, the judge's session, the lease, the turn.

        On a GPU in the background, since the driver takes 0.1 s to take a process's context down; the next job gets
        its turn when that is done.
        """
        if self.cpu:
            held.close()
            return

        def end() -> None:
            try:
                held.close()
            except Exception:
                log.exception("what a job held was not given back in order")

        try:
            # Not a daemon, though the thread that asks may be one: the interpreter waits for it.
            threading.Thread(target=end, name="fk-give-back", daemon=False).start()
        except RuntimeError:  # no thread is to be had
            end()

    def _free_bytes(self, session: JudgeSession) -> int | None:
        """Free memory of a GPU, caches given back; None on a CPU. Fails where the device does."""
        if self.cpu:
            return None
        session.ask("close")
        return int(session.ask("memory").body["free"])

    def _examine(self, before: int | None, alone: Callable[[], bool]) -> None:
        if before is None or self.closing.is_set():
            return
        self._expected_bytes = before
        if self._judge is None:
            # A new one is started for the next job, and is asked then: a job that was cancelled need not wait for it.
            self._doubted = True
            return
        why = self._trouble(alone)
        if not why:
            return
        log.warning("%s: %s; zygote and judge are started anew", self.device.uuid, why)
        with self._starting:
            if self.closing.is_set():
                return
            try:
                self._stop()
                self._start()
                why = self._trouble(alone)
            except FkError as error:
                why = error.message
            self.quarantined = why
        if why:
            log.error("%s is quarantined: %s", self.device.uuid, why)

    def _heal(self, alone: Callable[[], bool]) -> None:
        """Probe a device that is quarantined or in doubt. Raises ``DeviceBroken`` where something is wrong with it."""
        try:
            if self.quarantined:
                self._stop()
            self._start()
            why = self._trouble(alone)
        except DeviceBroken:
            raise
        except FkError as error:
            why = error.message
        if why:
            self.quarantined = why
            raise DeviceBroken(
                f"{self.device.uuid} is quarantined: {why}",
                hint="Run nvidia-smi and look for Xid errors in dmesg; it is probed again before the next job",
            )
        if self.quarantined:
            log.warning("%s is well again; it was quarantined: %s", self.device.uuid, self.quarantined)
        self.quarantined, self._doubted = "", False

    def _trouble(self, alone: Callable[[], bool]) -> str:
        """What is wrong with the device after a job, empty if nothing is."""
        deadline = time.monotonic() + RETURN_S
        while True:
            judge = self._judge
            if judge is None or not judge.alive():
                return "the judge died"
            try:
                free = self._free_bytes(JudgeSession(self, judge))
            except FkError as error:
                return f"a trusted probe failed: {error.message}"
            missing = 0 if self._expected_bytes is None or free is None else self._expected_bytes - free
            if missing <= SLACK_BYTES or not alone():
                return ""
            if time.monotonic() > deadline:
                return f"{missing >> 20} MiB of its memory did not come back after a job"
            time.sleep(0.1)

    # -- candidates ------------------------------------------------------------------------------------------------

    def _on_device(self) -> dict[str, Any]:
        """What a role is told of the device, and of how it may wait."""
        return {"device": self.torch_device, "spin_s": self._spin_s}

    @property
    def _spin_s(self) -> float:
        """On a GPU, where a turn takes 2 ms, and with cores to spare, nobody falls asleep in between."""
        return _SPIN_S if not self.cpu and (os.cpu_count() or 1) >= _SPIN_CORES else 0.0

    def _launch(
        self,
        role: str,
        config: dict[str, Any],
        *,
        level: str | None,
        scratch: Path | None,
        hide: tuple[Path, ...] = (),
        env: dict[str, str] | None = None,
    ) -> Child:
        zygote = self._zygote
        if zygote is None:
            raise ZygoteDied(f"there is no zygote to start the {role} from", hint="It is started anew for the next job")
        env = ({} if self.cpu else {"CUDA_VISIBLE_DEVICES": self.device.uuid}) | (env or {})
        child = launch(
            zygote, role, config, self.settings, level=level, scratch=scratch, cpu=self.cpu, hide=hide, env=env
        )
        child.channel.spin_s = config.get("spin_s", 0.0)
        return child

    @contextlib.contextmanager
    def _scratch(self, name: str) -> Iterator[Path]:
        """A scratch directory that is kept when the block succeeds and removed when it fails."""
        with _disk_faults("a scratch directory"):
            scratch = self.run.scratch(name)
            try:
                yield scratch
            except BaseException:
                trees.remove(scratch)
                raise

    def candidate(self, source: str, *, allow: list[str]) -> tuple[Child, Path]:
        """Start a confined process for a candidate file; the file is not loaded yet."""
        roots = tuple(catalog.default_roots())
        with self._scratch("job") as scratch:
            config = {
                "path": str(_put(source, scratch)),
                "scratch": str(scratch),
                **self._on_device(),
                "policy": sorted(policy_libraries()),
                "allow": allow,
                "forbidden": [str(p) for p in (*roots, self.settings.journal_dir)],
            }
            return self._launch("candidate", config, level=self.level, scratch=scratch, hide=roots), scratch

    def builder(self, source: str, scratch: Path) -> Child:
        """Start a confined process that compiles the candidate's kernels into its scratch directory's caches."""
        path = _put(source, scratch)
        config = {"path": str(path), "capability": int(self.device.compute_capability.replace(".", ""))}
        return self._launch("builder", config, level=self.level, scratch=scratch, hide=tuple(catalog.default_roots()))

    def _launcher_builder(self, scratch: Path) -> Child:
        """Start a trusted process that builds Triton's launchers in a cache of its own."""
        env = {"TRITON_CACHE_DIR": str(scratch / "triton"), "TMPDIR": str(scratch)}
        return self._launch("launchers", {}, level=None, scratch=None, env=env)

    def twin(self, spec: TaskSpec, provider: str, *, plant: bool = False) -> tuple[Child, Path]:
        """Start a confined process that runs a baseline in the candidate's place."""
        with self._scratch("twin") as scratch:
            # What the judge compiled for this baseline, so that torch.compile need not do it again.
            kept = self.settings.cache_dir
            copy_cache(kept / "triton", scratch / "triton")
            if (kept / "inductor").is_dir():
                shutil.copytree(kept / "inductor", scratch / "inductor", ignore_dangling_symlinks=True)
            config = {
                "task": spec.name,
                "init": {name: [p.model_dump() for p in entry.init] for name, entry in spec.entries.items()},
                "provider": provider,
                **self._on_device(),
                "scratch": str(scratch),
                "plant": plant,
            }
            return self._launch("twin", config, level=self.level, scratch=scratch), scratch


def _put(source: str, scratch: Path) -> Path:
    path = scratch / f"kernel_{secrets.token_hex(4)}.py"
    path.write_text(source, encoding="utf-8")
    path.chmod(0o444)
    return path


@contextlib.contextmanager
def _disk_faults(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HarnessError(
            f"{what} could not be made: {os.strerror(error.errno or 0)} ({error.filename or 'no file named'})",
            hint="Check free space and permissions of FK_HOME",
        ) from error
