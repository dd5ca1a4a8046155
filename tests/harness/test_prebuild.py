"""Building ahead with real, confined builders: Triton compiles for a GPU that is not there."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fk_core import launcher_stock, prebuild
from fk_core.child.triton_version import compiles_launchers
from fk_core.desk import Desk
from fk_core.harness import Harness
from fk_core.measure import Stopwatch
from fk_core.prebuild import Prebuild
from fk_core.records.device import Device
from fk_core.records.report import Outcome
from fk_core.sandbox import levels, sweep, triton_stubs
from fk_core.sandbox.launch import Child
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
from tests.harness import kit

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled")

GPU = Device(uuid="GPU-planted", kind="cuda", name="H200", compute_capability="9.0")
SOURCE = """
import time
import torch, triton
import triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

class Doubled(torch.nn.Module):
    def __init__(self, block=128):
        super().__init__()
        self.block = block

    def forward(self, x):
        y = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), self.block),)](x, y, x.numel(), BLOCK=self.block)
        return y

class Sleeper(Doubled):
    def forward(self, x):
        time.sleep(60)

class Killer(Doubled):
    def forward(self, x):
        import os
        os._exit(9)
"""
SIGNATURE = ("*bf16", "*bf16", "i32", "constexpr")


class GpuDesk(Desk):
    """A desk without a judge: its zygote is warm for a GPU, and forks builders."""

    def __init__(self, settings: Settings, zygote: Zygote, run: sweep.Run) -> None:
        super().__init__(settings, GPU, lambda: run)
        self._zygote, self.level = zygote, levels.choose(settings)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("fk")
    return Settings(home=home / "home", lock_dir=home / "locks")


@pytest.fixture(scope="module")
def zygote(own: Settings) -> Iterator[Zygote]:
    made = Zygote(own, interpret=False, target=90)
    made.start()
    yield made
    made.close()


@pytest.fixture
def desk(own: Settings, zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuDesk]:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    run = sweep.Run(own)
    made = GpuDesk(own, zygote, run)
    yield made
    made.launchers.close()
    run.close()


def row(entry: str = "Doubled", *, case: bool = False, **init: Any) -> dict[str, Any]:
    key = f"{entry}{init}"
    body = {"entry": entry, "init": init, "dtype": "bfloat16", "state": {}, "inputs": [[[4, 64]], [[3, 33]]]}
    return {"key": key, "form": "plain", "case": case} | body


def kernels(cache: Path) -> int:
    return len(list(cache.rglob("*.cubin")))


def begin(desk: GpuDesk, *rows: dict[str, Any], source: str = SOURCE) -> Prebuild:
    ahead = Prebuild(desk, source, desk.run.scratch("job"), None, threading.Event())
    ahead.build(list(rows))
    return ahead


def settled(ahead: Prebuild) -> None:
    for thread in ahead._threads:
        thread.join(60.0)


def test_what_cases_need_is_there_while_another_builder_hangs(desk: GpuDesk) -> None:
    ahead = begin(desk, row(case=True), row("Sleeper"), row(block=256), row("Killer"))
    try:
        assert not ahead.has_cases()
        ahead.wait_for_cases()
        assert ahead.has_cases()
        assert kernels(ahead.cache) >= 2
        ahead.before_make(row(block=256)["key"])
        assert kernels(ahead.cache) == 4
        assert kernels(ahead.store.path) == 4
    finally:
        ahead.close()
    assert kernels(ahead.store.path) == 4
    again = begin(desk, row(case=True))
    assert kernels(again.cache) == 4
    settled(again)
    again.close()
    assert kernels(again.cache) == 4


def test_signatures_lead_to_launchers(
    desk: GpuDesk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where Triton has none to compile, its missing function is a failure that nobody notices."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(launcher_stock, "compiles_launchers", lambda version: True)
    build_all(desk, SOURCE + "# another\n")
    worker = desk.launchers._worker
    if worker is not None:
        worker.join(60.0)
    kept = triton_stubs.launchers(desk.settings)
    assert desk.launchers._known.keys() == {SIGNATURE}
    name = desk.launchers._known[SIGNATURE]
    if not name:  # also where there is no driver's library to link it with
        assert "no launcher for" in caplog.text
        assert not kept.exists()
        return
    assert compiles_launchers(metadata.version("triton"))
    (launcher,) = kept.glob(f"{name}/*.so")
    with launcher.open("ab") as file:
        file.write(b"seeded")
    later = build_all(desk, SOURCE + "# a third\n")
    (found,) = later.cache.glob("*/*launcher*.so")
    assert (found.parent.name, found.name) == (name, launcher.name), "the builder's Triton looks for another one"
    assert found.read_bytes().endswith(b"seeded"), "the builder compiled it all the same"


def build_all(desk: GpuDesk, source: str) -> Prebuild:
    ahead = begin(desk, row(case=True), source=source)
    settled(ahead)
    ahead.close()
    return ahead


def test_closing_the_desk_ends_the_process_that_builds_launchers(
    desk: GpuDesk, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_stock, "compiles_launchers", lambda version: True)
    start = desk.launchers._start

    def hanging(scratch: Path) -> Child:
        child = start(scratch)
        os.kill(child.pid, signal.SIGSTOP)
        return child

    monkeypatch.setattr(desk.launchers, "_start", hanging)
    desk.launchers.offer([("i32", "fp32")])
    deadline = time.monotonic() + 20.0
    while not desk.launchers._known and time.monotonic() < deadline:
        time.sleep(0.02)
    child = desk.launchers._child
    assert child is not None
    assert child.alive()
    desk.launchers.close()
    assert not child.alive()
    assert not list(desk.run.path.glob("launchers-*"))


class Noted:
    """In place of :class:`Prebuild`: what a validation asks of it, in order."""

    told: ClassVar[list[str]] = []

    def __init__(self, desk: Desk, source: str, scratch: Path, *rest: Any) -> None:
        assert scratch.is_dir()
        self.scratch = scratch
        self.told.append("begin")

    def build(self, builds: list[dict[str, Any]]) -> None:
        self.told.append("build")

    def has_cases(self) -> bool:
        self.told.append("cases")
        return True

    def wait_for_cases(self) -> None:
        pass

    def before_make(self, key: str) -> None:
        self.told.append("make")

    def close(self) -> None:
        assert self.scratch.is_dir(), "nothing is written to a directory that was removed"
        self.told.append("close")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (kit.GOOD, ["begin", "build", "cases", "make", "close"]),
        (kit.WRONG, ["begin", "build", "cases", "make", "close"]),
        (kit.CRASHING, ["begin", "build", "cases", "make", "close"]),
        (kit.candidate(top="raise ValueError('at import')"), ["begin", "build", "close"]),
    ],
)
def test_a_validation_waits_for_cases_and_ends_it(
    shared: Harness, monkeypatch: pytest.MonkeyPatch, source: str, told: list[str]
) -> None:
    monkeypatch.setattr(Noted, "told", [])
    monkeypatch.setattr(prebuild, "worthwhile", lambda source, desk: True)
    monkeypatch.setattr(prebuild, "Prebuild", Noted)
    report = shared.validate(kit.request(source))
    assert (report.outcome is Outcome.PASSED) is (source is kit.GOOD)
    assert list(dict.fromkeys(Noted.told)) == told
    assert Noted.told.count("close") == 1


def test_captures_are_given_up_even_if_builders_can_not_be_ended(
    shared: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(Noted):
        def close(self) -> None:
            super().close()
            raise RuntimeError("planted")

    closed: list[Stopwatch] = []
    real = Stopwatch.close

    def close(self: Stopwatch) -> None:
        closed.append(self)
        real(self)

    monkeypatch.setattr(Noted, "told", [])
    monkeypatch.setattr(prebuild, "worthwhile", lambda source, desk: True)
    monkeypatch.setattr(prebuild, "Prebuild", Stubborn)
    monkeypatch.setattr(Stopwatch, "close", close)
    report = shared.validate(kit.request(kit.WRONG))
    assert report.outcome is Outcome.HARNESS_FAULT
    assert Noted.told.count("close") == len(closed) > 0


@pytest.mark.parametrize("broken", [False, True])
def test_what_an_earlier_run_has_built_is_not_built_again(
    desk: GpuDesk, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    source = f"{SOURCE}\n# again, broken: {broken}\n"
    first = begin(desk, row(case=True), source=source)
    settled(first)
    first.close()
    if broken:
        first.store.path.with_suffix(".json").write_text("[[", encoding="utf-8")
    started: list[Path] = []
    real = desk.builder

    def builder(source: str, scratch: Path) -> Any:
        started.append(scratch)
        return real(source, scratch)

    monkeypatch.setattr(desk, "builder", builder)
    second = begin(desk, row(case=True), row(block=256), source=source)
    assert second.has_cases() is not broken
    settled(second)
    second.close()
    assert (len(started) > 1) is broken
    assert kernels(second.cache) == kernels(second.store.path) == 4
    third = begin(desk, row(case=True), row(block=256), source=source)
    third.close()
    assert (len(started) > 1) is broken
    assert kernels(third.cache) == 4
