"""Which claims of builders are believed, and how launchers are built behind every job's back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fk_core import launcher_stock
from fk_core.child import wire
from fk_core.child.triton_version import compiles_launchers
from fk_core.launcher_stock import MOST_ARGUMENTS, MOST_SIGNATURES, LauncherStock, read_claim
from fk_core.sandbox import triton_stubs
from fk_core.sandbox.launch import ChildGone
from fk_core.settings import Settings

NORM = ["*bf16", "*bf16", "*bf16", "i32", "fp32", "constexpr"]
ONE, TWO, THREE = ("*bf16",), ("*fp32", "i32"), ("i64",)


@pytest.mark.parametrize(
    ("version", "compiles"),
    [
        ("3.6.0", True),
        ("3.6", True),
        ("3.5.1+git1a2b", True),
        ("2.9.9", True),
        ("3.7.0", False),
        ("3.7.1", False),
        ("3.9", False),
        ("3.10.0", False),
        ("3.60.0", False),
        ("4.0.0", False),
        ("4.1", False),
        ("10.2", False),
        ("", False),
        ("main", False),
    ],
)
def test_triton_before_3_7_compiles_launchers(version: str, compiles: bool) -> None:
    assert compiles_launchers(version) is compiles


def test_signatures_are_read_in_order_and_each_once() -> None:
    assert read_claim([NORM, ["*i1"], NORM, []]) == [tuple(NORM), ("*i1",), ()]


@pytest.mark.parametrize(
    "claim",
    [
        None,
        7,
        "*bf16",
        {"0": NORM},
        [None],
        ["*bf16"],
        [{"X": "*bf16"}],
        [[7]],
        [[True]],
        [[None]],
        [[["*bf16", "i32"]]],
        [[{}]],
        [["tensordesc<bf16[128,64]>"]],
        [["nvTmaDesc"]],
        [["*"]],
        [["**bf16"]],
        [["*constexpr"]],
        [["fp8e5"]],
        [[""]],
        [["i32 "]],
        [["i32\n"]],
        [["I32"]],
        [["i32); system(\"id\"); ("]],
        [["../../../etc/passwd"]],
        [["i32"] * (MOST_ARGUMENTS + 1)],
    ],
)  # fmt: skip
def test_what_is_no_signature_is_left_out(claim: Any) -> None:
    assert read_claim(claim) == []
    if isinstance(claim, list):
        assert read_claim([*claim, NORM]) == [tuple(NORM)]


def test_a_claim_is_read_only_so_far() -> None:
    widest = ["i32"] * MOST_ARGUMENTS
    assert read_claim([widest]) == [tuple(widest)]
    many = [["i32"] * n for n in range(MOST_SIGNATURES + 5)]
    assert read_claim(many) == [tuple(s) for s in many[:MOST_SIGNATURES]]
    assert read_claim([[7]] * MOST_SIGNATURES + [NORM]) == []


class Process:
    """The trusted role, without a process: ``answer`` gets the signature, and the cache that launchers go to."""

    def __init__(self, cache: Path, answer: Callable[[tuple[str, ...], Path], dict[str, Any]]) -> None:
        self.cache, self.answer, self.killed = cache, answer, threading.Event()

    def ask(self, body: dict[str, Any], timeout_s: float) -> wire.Frame:
        assert body["do"] == "build"
        answer = self.answer(tuple(body["signature"]), self.cache)
        if self.killed.is_set():
            raise ChildGone("the process ended", "killed by the harness", "", None)
        return wire.Frame(wire.REPLY, 0, 0, answer, [])

    def kill(self) -> None:
        self.killed.set()


def name_of(signature: tuple[str, ...]) -> str:
    return "K" + "".join(c if c.isalnum() else "P" for c in "".join(signature))


def builds(signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
    (cache / name_of(signature)).mkdir(parents=True, exist_ok=True)
    (cache / name_of(signature) / "__triton_launcher.so").write_text("of trusted origin", encoding="ascii")
    return {"name": name_of(signature), "failed": ""}


class Place:
    """A stock whose processes are fakes."""

    def __init__(self, root: Path) -> None:
        self.settings = Settings(home=root / "home", lock_dir=root / "locks")
        self.root, self.started, self.scratches = root, 0, 0
        self.asked: list[tuple[str, ...]] = []
        self.answer: Callable[[tuple[str, ...], Path], dict[str, Any]] = builds
        self.stock = self.another()

    def another(self) -> LauncherStock:
        return LauncherStock(self.settings, self._start, self._scratch)

    def _start(self, scratch: Path) -> Any:
        self.started += 1
        return Process(scratch / "triton", self._answer)

    def _answer(self, signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
        self.asked.append(signature)
        return self.answer(signature, cache)

    def _scratch(self, name: str) -> Path:
        self.scratches += 1
        path = self.root / f"{name}-{self.scratches}"
        path.mkdir()
        return path

    def kept(self) -> list[str]:
        folder = triton_stubs.launchers(self.settings)
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []

    def settle(self) -> None:
        worker = self.stock._worker
        if worker is not None:
            worker.join(10.0)
            assert not worker.is_alive()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(launcher_stock, "compiles_launchers", lambda version: True)
    return Place(tmp_path)


def test_a_signature_is_built_once_and_seeds_later_caches(place: Place) -> None:
    place.stock.offer([ONE, TWO])
    place.settle()
    assert place.kept() == sorted([name_of(ONE), name_of(TWO)])
    place.stock.offer([TWO, ONE])
    place.settle()
    assert place.asked == [ONE, TWO]
    assert place.started == 1, "an idle harness starts no process for what it has"
    assert triton_stubs.seed(place.settings, place.root / "cache") == 2
    assert not list(place.root.glob("launchers-*")), "its scratch is gone"


def test_nothing_happens_where_triton_compiles_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_stock, "version", lambda name: "3.10.0")
    place = Place(tmp_path)
    place.stock.offer([ONE])
    place.settle()
    assert (place.started, place.scratches) == (0, 0)


def test_what_was_refused_is_not_tried_again(place: Place) -> None:
    place.answer = lambda signature, cache: {"name": "", "failed": "CalledProcessError: gcc"}
    place.stock.offer([ONE])
    place.settle()
    place.answer = builds
    place.stock.offer([ONE, TWO])
    place.settle()
    assert place.asked == [ONE, TWO]
    assert place.kept() == [name_of(TWO)]


def test_a_process_that_dies_takes_nothing_with_it(place: Place) -> None:
    """What was built before stays, what was not come to is tried again, and the harness falls into no hole twice."""

    def dies(signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
        if signature == TWO:
            raise ChildGone("the process ended", "signal 11 (SIGSEGV)", "", None)
        return builds(signature, cache)

    place.answer = dies
    place.stock.offer([ONE, TWO, THREE])
    place.settle()
    assert place.kept() == [name_of(ONE)]
    assert not list(place.root.glob("launchers-*"))
    place.stock.offer([ONE, TWO, THREE])
    place.settle()
    assert place.started == 2
    assert place.asked == [ONE, TWO, THREE]
    assert place.kept() == sorted([name_of(ONE), name_of(THREE)])


def test_a_zygote_that_is_gone_is_no_matter(place: Place) -> None:
    def gone(scratch: Path) -> Any:
        raise RuntimeError("planted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.stock, "_start", gone)
        place.stock.offer([ONE])
        place.settle()
    assert not list(place.root.glob("launchers-*"))
    place.stock.offer([ONE])
    place.settle()
    assert place.kept() == [name_of(ONE)]


def test_what_is_about_to_be_built_is_not_taken_twice(place: Place) -> None:
    begun, gate = threading.Event(), threading.Event()

    def waits(signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
        begun.set()
        gate.wait(10.0)
        return builds(signature, cache)

    place.answer = waits
    place.stock.offer([ONE, TWO, TWO])
    assert begun.wait(5.0)
    place.stock.offer([ONE, TWO, THREE])
    gate.set()
    place.settle()
    assert place.asked == [ONE, TWO, THREE]


def test_what_was_dropped_is_built_again(place: Place) -> None:
    place.stock.offer([ONE])
    place.settle()
    folder = triton_stubs.launchers(place.settings) / name_of(ONE)
    folder.rename(place.root / "dropped")
    place.stock.offer([ONE])
    place.settle()
    assert place.asked == [ONE, ONE]
    assert place.kept() == [name_of(ONE)]


def test_no_compiler_starts_while_it_is_paused(place: Place) -> None:
    with place.stock.paused():
        place.stock.offer([ONE])
        time.sleep(0.2)
        assert place.asked == []
    place.settle()
    assert place.asked == [ONE]


def test_one_that_is_paused_holds_up_no_other(place: Place) -> None:
    """Neither before its process starts nor in the middle of what it was to build."""
    other = place.another()
    begun, gate = threading.Event(), threading.Event()

    def waits(signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
        if signature == ONE:
            begun.set()
            gate.wait(10.0)
        return builds(signature, cache)

    def others(signature: tuple[str, ...]) -> bool:
        other.offer([signature])
        deadline = time.monotonic() + 5.0
        while name_of(signature) not in place.kept() and time.monotonic() < deadline:
            time.sleep(0.01)
        return name_of(signature) in place.kept()

    place.answer = waits
    place.stock.offer([ONE, TWO])
    assert begun.wait(5.0)
    with place.stock.paused():
        gate.set()
        assert others(("fp32",))
        assert place.asked == [ONE, ("fp32",)]
        assert place.stock._child is None, "no process idles meanwhile"
        place.stock.offer([THREE, TWO])
        assert others(("fp64",))
        assert place.asked == [ONE, ("fp32",), ("fp64",)]
    place.settle()
    assert place.asked[3:] == [TWO, THREE]


def test_no_process_is_started_by_one_that_was_paused_while_another_built(place: Place) -> None:
    with launcher_stock._one_at_a_time:
        place.stock.offer([ONE])
        deadline = time.monotonic() + 5.0
        while place.stock._pending and time.monotonic() < deadline:
            time.sleep(0.01)
        pause = place.stock.paused()
        pause.__enter__()
    time.sleep(0.2)
    assert place.started == 0
    pause.__exit__(None, None, None)
    place.settle()
    assert place.asked == [ONE]


def test_closing_does_not_wait_for_others(place: Place) -> None:
    with launcher_stock._one_at_a_time:
        place.stock.offer([ONE])
        worker = place.stock._worker
        assert worker is not None
        deadline = time.monotonic() + 5.0
        while place.stock._pending and time.monotonic() < deadline:
            time.sleep(0.01)
        began = time.monotonic()
        place.stock.close()
        assert time.monotonic() - began < 1.0
        assert not worker.is_alive()
    assert place.started == 0


def test_one_that_is_paused_after_it_was_closed_ends_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process had answered just before it was killed."""
    monkeypatch.setattr(Process, "kill", lambda process: None)
    begun, gate = threading.Event(), threading.Event()

    def hangs(signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
        begun.set()
        gate.wait(10.0)
        return builds(signature, cache)

    place.answer = hangs
    place.stock.offer([ONE, TWO])
    worker = place.stock._worker
    assert worker is not None
    assert begun.wait(5.0)
    closing = threading.Thread(target=place.stock.close)
    closing.start()
    assert place.stock._closed.wait(5.0)
    with place.stock.paused():
        gate.set()
        closing.join(5.0)
        worker.join(1.0)
        assert not worker.is_alive()
    assert place.asked == [ONE]


def test_two_never_build_at_once(place: Place) -> None:
    """Not even for two devices of one harness."""
    at_work: list[int] = []
    most: list[int] = []

    def slowly(signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.05)
        at_work.pop()
        return builds(signature, cache)

    place.answer = slowly
    other = place.another()
    for n in range(4):
        place.stock.offer([("i32",) * n])
        other.offer([("fp32",) * (n + 1)])
    place.settle()
    worker = other._worker
    if worker is not None:
        worker.join(10.0)
    assert max(most) == 1
    assert len(place.asked) == 8


@pytest.mark.parametrize("paused", [True, False])
def test_closing_ends_what_is_built(place: Place, paused: bool) -> None:
    begun, killed = threading.Event(), threading.Event()

    def hangs(signature: tuple[str, ...], cache: Path) -> dict[str, Any]:
        begun.set()
        killed.wait(10.0)
        return builds(signature, cache)

    place.answer = hangs
    kill = Process.kill

    def kill_too(self: Process) -> None:
        kill(self)
        killed.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "kill", kill_too)
        if paused:
            place.stock._free.clear()
        place.stock.offer([ONE, TWO])
        worker = place.stock._worker
        assert worker is not None
        assert paused or begun.wait(5.0)
        began = time.monotonic()
        place.stock.close()
        assert time.monotonic() - began < 2.0
        assert not worker.is_alive()
    assert place.asked == ([] if paused else [ONE])
    place.stock.offer([THREE])
    assert place.stock._worker is None
