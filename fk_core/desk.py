"""The harness's desk at one device: a warm zygote, a warm judge, and the candidates that sit in front of it.

One job at a time uses the judge. A zygote or judge that died is replaced before the next job.
"""

from __future__ import annotations

import collections
import contextlib
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fk_core import catalog
from fk_core.child import wire
from fk_core.errors import Cancelled, HarnessError, JudgeDied
from fk_core.leases.foreign import Registration, Registry
from fk_core.records.device import Device
from fk_core.records.task import TaskSpec
from fk_core.sandbox import levels, triton_stubs
from fk_core.sandbox.launch import Child, ChildGone, launch
from fk_core.sandbox.sweep import Run
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings

_JUDGE_S = 300.0


class Desk:
    """Zygote and judge of one device. Thread-safe; :meth:`session` gives the judge to one job."""

    def __init__(self, settings: Settings, device: Device, run: Run) -> None:
        self.settings, self.device, self.run = settings, device, run
        self.versions: dict[str, Any] = {}
        self.level = ""
        self.cpu = device.kind == "cpu"
        self._zygote: Zygote | None = None
        self._judge: Child | None = None
        self._registration: Registration | None = None
        self._starting = threading.Lock()
        self._session = threading.Lock()
        self._closed = False

    @property
    def torch_device(self) -> str:
        # CUDA_VISIBLE_DEVICES of the children names this one GPU.
        return "cpu" if self.cpu else "cuda:0"

    def warm(self) -> None:
        """Start zygote and judge if they are not alive."""
        with self._starting:
            if self._closed:
                raise HarnessError("the harness is closed")
            if self._zygote is None or not self._zygote.alive():
                self._stop()
                capability = self.device.compute_capability.replace(".", "")
                zygote = Zygote(self.settings, interpret=self.cpu, target=int(capability) if capability else None)
                self.versions = zygote.start()
                self._zygote = zygote
            if not self.level:
                self.level = levels.choose(self.settings)
            if self._judge is None or not self._judge.alive():
                self._judge = self._launch("judge", {"device": self.torch_device}, level=None, scratch=None)
                if not self.cpu:
                    self._registration = Registry(self.settings).register(self._judge.pid)
                    self._ask({"do": "machine"})
                    triton_stubs.harvest(self.settings)

    def _launch(
        self, role: str, config: dict[str, Any], *, level: str | None, scratch: Path | None, hide: tuple[Path, ...] = ()
    ) -> Child:
        assert self._zygote is not None
        env = {} if self.cpu else {"CUDA_VISIBLE_DEVICES": self.device.uuid}
        return launch(
            self._zygote, role, config, self.settings, level=level, scratch=scratch, cpu=self.cpu, hide=hide, env=env
        )

    def candidate(self, source: str, *, allow: list[str]) -> tuple[Child, Path]:
        """Start a confined process for a candidate file; the file is not loaded yet."""
        scratch = self.run.scratch("job")
        path = scratch / f"kernel_{secrets.token_hex(4)}.py"
        path.write_text(source, encoding="utf-8")
        path.chmod(0o444)
        roots = tuple(catalog.default_roots())
        config = {
            "path": str(path),
            "scratch": str(scratch),
            "device": self.torch_device,
            "allow": allow,
            "forbidden": [str(p) for p in (*roots, self.settings.journal_dir)],
        }
        return self._launch("candidate", config, level=self.level, scratch=scratch, hide=roots), scratch

    def builder(self, source: str, scratch: Path) -> Child:
        """Start a confined process that compiles the candidate's kernels into its scratch directory's caches."""
        path = scratch / f"kernel_{secrets.token_hex(4)}.py"
        path.write_text(source, encoding="utf-8")
        path.chmod(0o444)
        config = {"path": str(path), "capability": int(self.device.compute_capability.replace(".", ""))}
        return self._launch("builder", config, level=self.level, scratch=scratch, hide=tuple(catalog.default_roots()))

    def twin(self, spec: TaskSpec, provider: str, *, plant: bool = False) -> tuple[Child, Path]:
        """Start a confined process that runs a baseline in the candidate's place."""
        scratch = self.run.scratch("twin")
        for name in ("inductor", "triton"):
            # What the judge compiled for this baseline, so that torch.compile need not do it again.
            kept = self.settings.cache_dir / name
            if kept.is_dir():
                shutil.copytree(kept, scratch / name, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        config = {
            "task": spec.name,
            "init": {name: [p.model_dump() for p in entry.init] for name, entry in spec.entries.items()},
            "provider": provider,
            "device": self.torch_device,
            "scratch": str(scratch),
            "plant": plant,
        }
        return self._launch("twin", config, level=self.level, scratch=scratch), scratch

    @contextlib.contextmanager
    def session(self, cancel: threading.Event | None = None) -> Iterator[JudgeSession]:
        """The judge for one job; waits while another job has it."""
        while not self._session.acquire(timeout=0.2):
            if cancel is not None and cancel.is_set():
                raise Cancelled("cancelled while another job used the judge")
        try:
            self.warm()
            yield JudgeSession(self)
        finally:
            with contextlib.suppress(JudgeDied):
                if self._judge is not None and self._judge.alive():
                    self._ask({"do": "close"})
            self._session.release()

    def _ask(self, body: dict[str, Any], fds: tuple[int, ...] = ()) -> wire.Frame:
        judge = self._judge
        if judge is None:
            raise JudgeDied("there is no judge")
        try:
            frame = judge.ask(body, _JUDGE_S, fds)
        except (ChildGone, wire.ProtocolError) as error:
            judge.kill()
            self._judge = None
            raise JudgeDied(
                f"the judge of {self.device.uuid} died while it did {body.get('do')!r}: {error}",
                hint="It is started anew for the next job; if this repeats, run `fk doctor`",
            ) from error
        if frame.kind == wire.ERROR:
            told = frame.body.get("exception", {})
            raise HarnessError(
                f"the judge could not do {body.get('do')!r}: {told.get('type')}: {told.get('message')}",
                hint=str(told.get("trace", ""))[-1200:],
            )
        return frame

    def judge_memory(self) -> dict[str, int]:
        return dict(self._ask({"do": "memory"}).body)

    def _stop(self) -> None:
        if self._registration is not None:
            self._registration.release()
            self._registration = None
        if self._judge is not None:
            self._judge.kill()
            self._judge = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def close(self) -> None:
        with self._starting:
            self._closed = True
            self._stop()


class JudgeSession:
    """What a job may ask of the judge. ``detail`` adds up the seconds it was waited for, by what it did."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.detail: collections.Counter[str] = collections.Counter()

    def ask(self, do: str, *, fds: tuple[int, ...] = (), **body: Any) -> wire.Frame:
        began = time.monotonic()
        try:
            return self.desk._ask({"do": do, **body}, fds)
        finally:
            self.detail[f"judge {do}"] += time.monotonic() - began  # type: ignore[assignment]  # a Counter adds floats too

    def post(self, do: str, **body: Any) -> tuple[int, int]:
        """Send without waiting; pass what comes back to :meth:`collect`."""
        judge = self.desk._judge
        if judge is None:
            raise JudgeDied("there is no judge")
        try:
            return judge.channel.post({"do": do, **body})
        except wire.ProtocolError as error:
            raise JudgeDied(f"the judge is gone: {error}") from error

    def collect(self, ticket: tuple[int, int], do: str) -> dict[str, Any]:
        return self.collect_frame(ticket, do).body

    def collect_frame(self, ticket: tuple[int, int], do: str) -> wire.Frame:
        judge = self.desk._judge
        if judge is None:
            raise JudgeDied("there is no judge")
        began = time.monotonic()
        try:
            frame = judge.channel.answer(*ticket, timeout_s=_JUDGE_S)
        except wire.ProtocolError as error:
            raise JudgeDied(f"the judge is gone: {error}") from error
        finally:
            self.detail[f"judge {do}"] += time.monotonic() - began  # type: ignore[assignment]  # a Counter adds floats too
        if frame.kind == wire.ERROR:
            told = frame.body.get("exception", {})
            raise HarnessError(f"the judge could not do {do!r}: {told.get('type')}: {told.get('message')}")
        return frame
