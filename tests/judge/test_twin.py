"""A baseline in the candidate's place: in this process with a provider that counts, and once as it is really run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fk_core import calibrate
from fk_core.child import twin, wire
from fk_core.child.arena import HostArena
from fk_core.child.baselines.torch_eager import PROVIDER
from fk_core.child.planted import EVERY
from fk_core.harness import Harness
from fk_core.records.report import Outcome
from fk_core.settings import Settings


class Counting(type(PROVIDER)):  # type: ignore[misc]
    """torch eager that counts its calls."""

    calls: ClassVar[int] = 0

    def build(self, *recipe: Any) -> Callable[..., Any]:
        forward = super().build(*recipe)

        def counted(*inputs: Tensor) -> Any:
            type(self).calls += 1
            return forward(*inputs)

        return counted


class Gone(BaseException):
    """In place of ending this process."""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., wire.Channel]]:
    """The twin's loop in a thread, with our end of its channel."""
    monkeypatch.setattr(twin, "provider", lambda name: Counting())
    monkeypatch.setattr(Counting, "calls", 0)
    left: list[tuple[wire.Channel, threading.Thread]] = []

    def leave(status: int) -> None:
        raise Gone

    monkeypatch.setattr(twin.os, "_exit", leave)

    def begin(**config: Any) -> wire.Channel:
        ours, theirs = (wire.Channel(s) for s in wire.pair())

        def serve() -> None:
            try:
                twin.main(
                    theirs,
                    {"provider": "counting", "device": "cpu", "task": "softmax", "scratch": "/x", "spin_s": 0.0}
                    | config,
                )
            except Gone:
                theirs.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        left.append((ours, thread))
        return ours

    yield begin
    for channel, thread in left:
        channel.close()
        thread.join(5.0)
        assert not thread.is_alive()


def ask(channel: wire.Channel, body: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
    frame = channel.ask(body, timeout_s=20.0, fds=fds)
    assert frame.kind == wire.REPLY, frame.body
    return frame.body


INIT = {"Softmax": [{"name": "dim", "annotation": "int", "has_default": True, "default": -1}]}


@pytest.mark.parametrize("plant", [False, True])
def test_the_planted_calls_really_happen(start: Callable[..., wire.Channel], plant: bool) -> None:
    arena = HostArena.create(1 << 16)
    channel = start(init=INIT, plant=plant)
    fd = arena.export()
    assert ask(channel, {"do": "context"}) == {}
    assert ask(channel, {"do": "load", "entries": ["Softmax"]}) == {"findings": []}
    ask(channel, {"do": "arena", "name": "main", "size": arena.size}, (fd,))
    os.close(fd)
    ask(channel, {"do": "make", "key": "k", "entry": "Softmax", "init": {}, "dtype": "float32", "state": {}})
    x = arena.tensor(0, (4, 16), torch.float32).copy_(torch.randn(4, 16))
    laid = {
        "do": "call", "key": "k", "inputs": [{"name": "x", "at": 0, "shape": [4, 16], "dtype": "float32"}],
        "outputs": [{"name": "y", "at": 4096, "bytes": 256}],
    }  # fmt: skip
    for n in range(2 * EVERY):
        told = ask(channel, laid | {"seq": n})
        assert told["outputs"][0]["copied"]
        assert told["earlier"] == told["aliases"] == []
        assert torch.equal(arena.tensor(4096, (4, 16), torch.float32), torch.softmax(x, -1))
    assert Counting.calls == 2 * EVERY + (2 if plant else 0)
    assert ask(channel, {"do": "checkpoint", "where": "final"}) == {"findings": []}


def test_a_failure_is_told(start: Callable[..., wire.Channel]) -> None:
    channel = start(init=INIT, plant=False)
    frame = channel.ask({"do": "make", "key": "k", "entry": "Nothing"}, timeout_s=20.0)
    assert frame.kind == wire.ERROR
    assert frame.body["exception"]["type"] == "KeyError"
    assert ask(channel, {"do": "checkpoint", "where": "final"}) == {"findings": []}


def test_the_baseline_against_itself_on_the_cpu(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks", device="cpu")
    with Harness(settings) as harness:
        device = harness.device()
        for plant in ("", "candidate", "baseline"):
            report = calibrate.run_twin(harness, "softmax", device=device, cases="quick", plant=plant)
            assert report.outcome is Outcome.PASSED, report.summary
            assert report.evidence == []
            assert not report.winner
            assert report.speed.trust == "indicative"
            assert report.speed.baseline.startswith("torch_eager")
            assert report.attempt_id == "", "not journaled"
            assert all(c.outcome is Outcome.PASSED and c.verdict != "not_timed" for c in report.cases)
        assert list((tmp_path / "home").rglob("twin*")) == [], "scratch directories are removed"


@pytest.mark.parametrize(
    ("kind", "provider", "runs"),
    [("cuda", "torch_compile", [2, 1, 1]), ("cuda", "torch_eager", [1, 1, 1]), ("cpu", "torch_compile", [1, 1, 1])],
)
def test_who_tunes_has_tuned_before_it_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, provider: str, runs: list[int]
) -> None:
    asked: list[str] = []

    def validate(*given: Any, **more: Any) -> Any:
        asked.append(more["provider"])
        return SimpleNamespace(outcome=Outcome.PASSED)

    monkeypatch.setattr(calibrate.validation, "validate", validate)
    harness = Harness(Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks", device="cpu"))
    monkeypatch.setattr(harness, "desk", lambda device: None)
    device = harness.device("cpu").model_copy(update={"kind": kind})
    for wanted in runs:
        calibrate.run_twin(harness, "softmax", device=device, cases="default", provider=provider)
        assert asked == [provider] * wanted
        asked.clear()
    calibrate.run_twin(harness, "softmax", device=device, cases="quick", provider=provider)
    assert len(asked) == runs[0], "other cases are tuned by themselves"


def test_floors_are_kept_per_machine(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, lock_dir=tmp_path)
    floors = calibrate.Floors(settings)
    device = Harness(settings).device("cpu").model_copy(update={"kind": "cuda"})
    other = device.model_copy(update={"driver": "other"})
    assert floors.of(device) == settings.timing.default_floor
    assert floors.measured(device) is None
    floors.keep(device, 0.0042, [1.001, 0.998])
    assert floors.of(device) == floors.measured(device) == 0.0042
    assert floors.measured(other) is None
    assert calibrate.Floors(settings).of(device) == 0.0042
    assert sorted(p.suffix for p in (settings.cache_dir / "machines").iterdir()) == [".json", ".lock"]


def test_a_cpu_is_never_taken_to_be_quieter_than_it_is(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, lock_dir=tmp_path)
    floors, device = calibrate.Floors(settings), Harness(settings).device("cpu")
    assert floors.of(device) == settings.timing.cpu_floor
    floors.keep(device, 0.0042, [1.001, 0.998])
    assert floors.of(device) == settings.timing.cpu_floor
    floors.keep(device, 0.4, [1.4, 0.7])
    assert floors.of(device) == 0.4
    floors.keep(device, 1.3, [3.7])
    assert floors.of(device) == calibrate.MOST


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", '{"floor": "high"}', '{"floor": NaN}', '{"times": 7}', '{"floor": -1}', '{"floor": true}',
])  # fmt: skip
def test_a_spoiled_record_of_the_machine_is_no_record(tmp_path: Path, text: str) -> None:
    settings = Settings(home=tmp_path, lock_dir=tmp_path)
    harness = Harness(settings)
    device, spec = harness.device("cpu").model_copy(update={"kind": "cuda"}), harness.catalog.get("softmax")
    path = harness.floors._path(device)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    assert harness.floors.of(device) == settings.timing.default_floor
    assert harness.floors.measured(device) is None
    assert harness.floors.times(device, spec) == {}
