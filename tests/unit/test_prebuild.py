"""What is copied from a cache that a candidate may have filled, and building ahead: when it is worth it, who waits."""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fk_core import build_store, prebuild
from fk_core.build_store import BuildStore
from fk_core.child import wire
from fk_core.errors import ZygoteDied
from fk_core.prebuild import Prebuild
from fk_core.sandbox import triton_cache
from fk_core.sandbox.launch import ChildGone
from fk_core.settings import Settings


def test_plain_files_are_copied_once_and_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "abc").mkdir(parents=True)
    (source / "abc" / "kernel.cubin").write_bytes(b"one")
    assert triton_cache.copy_cache(source, target) == 1
    (source / "abc" / "kernel.cubin").write_bytes(b"two")
    (source / "abc" / "kernel.json").write_bytes(b"{}")
    assert triton_cache.copy_cache(source, target) == 1
    assert (target / "abc" / "kernel.cubin").read_bytes() == b"one"
    assert sorted(p.name for p in (target / "abc").iterdir()) == ["kernel.cubin", "kernel.json"]


def test_links_and_special_files_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("do not copy", encoding="utf-8")
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "abc").mkdir(parents=True)
    (source / "abc" / "linked").symlink_to(secret / "token")
    (source / "folder").symlink_to(secret)
    os.mkfifo(source / "abc" / "pipe")
    assert triton_cache.copy_cache(source, target) == 0
    assert not list(target.rglob("*token*"))
    assert not (target / "abc" / "linked").exists()
    (tmp_path / "all").symlink_to(source)
    assert triton_cache.copy_cache(tmp_path / "all", target) == 0


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    """A candidate may put a link where the harness is about to write."""
    outside = tmp_path / "outside"
    outside.mkdir()
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("abc", "def"):
        (source / name).mkdir(parents=True)
        (source / name / "kernel.cubin").write_bytes(b"one")
    (target / "def").mkdir(parents=True)
    (target / "abc").symlink_to(outside)
    (target / "def" / "kernel.cubin").symlink_to(outside / "made")
    assert triton_cache.copy_cache(source, target) == 0
    assert not list(outside.iterdir())
    (tmp_path / "all").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        triton_cache.copy_cache(source, tmp_path / "all")
    assert not list(outside.iterdir())


def test_other_names_of_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("do not copy", encoding="utf-8")
    (tmp_path / "source" / "abc").mkdir(parents=True)
    os.link(tmp_path / "token", tmp_path / "source" / "abc" / "kernel.cubin")
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target") == 0


def test_a_cache_is_copied_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "source" / "abc").mkdir(parents=True)
    for n in range(10):
        (tmp_path / "source" / "abc" / f"kernel{n}.cubin").write_bytes(b"x" * 100)
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target", most_bytes=350) == 3
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target", most_bytes=350) == 3
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target") == 4


@pytest.mark.parametrize("text", ["[" * 100_000, "7", "[]", '{"child_paths": 7}', "{"])
def test_a_list_of_files_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "source" / "abc").mkdir(parents=True)
    (tmp_path / "source" / "abc" / "__grp__kernel.json").write_text(text, encoding="utf-8")
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target") == 0


def test_huge_files_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_cache, "_FILE_BYTES", 10)
    (tmp_path / "source" / "abc").mkdir(parents=True)
    (tmp_path / "source" / "abc" / "big").write_bytes(b"x" * 11)
    assert triton_cache.copy_cache(tmp_path / "source", tmp_path / "target") == 0


@pytest.mark.parametrize(
    ("source", "cpu", "cores", "worth"),
    [
        ("import triton", False, 8, True),
        ("import triton", True, 8, False),
        ("import triton", False, 2, False),
        ("import torch", False, 8, False),
        ("import triton\nfrom torch.utils.cpp_extension import load_inline", False, 8, False),
        ("import triton\nf = torch.compile(g)", False, 8, False),
    ],
)
def test_it_is_worth_it_for_triton_on_a_gpu_machine_with_cores(
    source: str, cpu: bool, cores: int, worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert prebuild.worthwhile(source, SimpleNamespace(cpu=cpu)) is worth  # type: ignore[arg-type]


# -- builders at work --------------------------------------------------------------------------------------------------

NORM = ["*bf16", "*bf16", "i32", "constexpr"]
Answer = Callable[[str], Any]
"""What a builder says of the row with this class; it may wait, and raise."""


def row(key: str, *, case: bool = False, shapes: int = 1) -> dict[str, Any]:
    inputs = [[[n + 1, 64]] for n in range(shapes)]
    return {"key": key, "form": "plain", "case": case, "entry": key, "init": {}, "inputs": inputs}


def well(entry: str) -> Any:
    return {"done": [list(range(99))], "failed": "", "signatures": [NORM]}


class Builder:
    def __init__(self, desk: Workshop, scratch: Path) -> None:
        self.desk, self.scratch, self.killed = desk, scratch, threading.Event()

    def ask(self, body: dict[str, Any], timeout_s: float) -> wire.Frame:
        if not body["calls"]:
            self.desk.imported.append(self)
            return wire.Frame(wire.REPLY, 0, 0, {"done": []}, [])
        (call,) = body["calls"]
        assert not {"key", "form", "case"} & set(call), "the candidate's code is told what it needs"
        entry = call["entry"]
        with self.desk.lock:
            self.desk.asked.append(entry)
            self.desk.shapes.append(call["inputs"])
        answer = self.desk.answer(entry) if entry not in self.desk.hang else None
        if answer is None:
            self.killed.wait(20.0)
        if self.killed.is_set():
            raise ChildGone("the process ended", "killed by the harness", "", None)
        folder = self.scratch / "triton" / f"K{entry}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernel.cubin").write_text(entry, encoding="ascii")
        return wire.Frame(wire.REPLY, 0, 0, answer, [])

    def kill(self) -> None:
        self.killed.set()


class Workshop:
    """A desk whose builders are scripted. ``hang``: classes that no builder ever answers for."""

    def __init__(self, root: Path) -> None:
        self.settings = Settings(home=root / "home", lock_dir=root / "locks")
        self.device, self.run = SimpleNamespace(compute_capability="9.0"), self
        self.launchers = self
        self.root, self.lock = root, threading.Lock()
        self.answer: Answer = well
        self.hang: set[str] = set()
        self.asked: list[str] = []
        self.shapes: list[list[list[list[int]]]] = []
        self.offered: list[list[tuple[str, ...]]] = []
        self.builders: list[Builder] = []
        self.imported: list[Builder] = []
        """Those that were to import the source before there was a row to build."""
        self.job = root / "job"
        self.job.mkdir()
        self.cancel = threading.Event()

    def scratch(self, name: str) -> Path:
        with self.lock:
            path = self.root / f"{name}-{len(list(self.root.iterdir()))}-{time.monotonic_ns()}"
            path.mkdir()
            return path

    def builder(self, source: str, scratch: Path) -> Any:
        with self.lock:
            self.builders.append(Builder(self, scratch))
            return self.builders[-1]

    def offer(self, signatures: list[tuple[str, ...]]) -> None:
        self.offered.append(signatures)

    def begin(self, *rows: dict[str, Any]) -> Prebuild:
        ahead = Prebuild(self, "the source", self.job, None, self.cancel)  # type: ignore[arg-type]
        ahead.build(list(rows))
        return ahead

    def kernels(self, cache: Path | None = None) -> list[str]:
        return sorted(p.parent.name for p in (cache or self.job / "triton").rglob("*.cubin"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    made = Workshop(tmp_path)
    yield made
    assert all(b.killed.is_set() for b in made.builders), "no builder outlives its job"
    assert not list(tmp_path.glob("build-*"))


def settled(ahead: Prebuild) -> None:
    for thread in ahead._threads:
        thread.join(10.0)
        assert not thread.is_alive()


def build_all(desk: Workshop, *rows: dict[str, Any]) -> Prebuild:
    ahead = desk.begin(*rows)
    settled(ahead)
    ahead.close()
    return ahead


def quick(waiting: Callable[[], None], most_s: float = 1.0) -> bool:
    began = time.monotonic()
    waiting()
    return time.monotonic() - began < most_s


def until(reached: Callable[[], bool], most_s: float = 5.0) -> bool:
    deadline = time.monotonic() + most_s
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.005)
    return reached()


def test_cases_are_built_first_and_no_other_is_waited_for(desk: Workshop) -> None:
    desk.hang = {"late"}
    ahead = desk.begin(row("late", shapes=9), row("one", case=True), row("two", case=True, shapes=3), row("other"))
    assert quick(ahead.wait_for_cases)
    assert {"Kone", "Ktwo"} <= set(desk.kernels())
    assert quick(lambda: ahead.before_make("other"))
    assert "Kother" in desk.kernels()
    assert quick(lambda: ahead.before_make("a module that nobody builds"))
    ahead.close()
    assert quick(lambda: ahead.before_make("late"))


def test_rows_are_dealt_cases_first_then_by_shapes(desk: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    ahead = desk.begin(
        row("few"), row("many", shapes=5), row("case", case=True), row("large case", case=True, shapes=2)
    )
    settled(ahead)
    assert desk.asked == ["large case", "case", "many", "few"]
    assert len(desk.builders) == 1
    ahead.close()


@pytest.mark.parametrize(("cores", "rows", "builders"), [(32, 40, 16), (32, 5, 5), (3, 5, 3), (2, 0, 0)])
def test_there_is_a_builder_for_each_row(
    desk: Workshop, monkeypatch: pytest.MonkeyPatch, cores: int, rows: int, builders: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(prebuild, "_EARLY", 0)
    # All are at work: one that is done early takes a second row, and others find none.
    desk.answer = lambda entry: well(entry) if until(lambda: len(desk.builders) == builders) else None
    ahead = desk.begin(*[row(str(n), case=True) for n in range(rows)])
    assert quick(ahead.wait_for_cases, 5.0)
    settled(ahead)
    assert len(desk.builders) == builders
    assert len(desk.kernels()) == rows
    ahead.close()


def test_builders_start_before_the_rows_are_known(desk: Workshop) -> None:
    ahead = Prebuild(desk, "the source", desk.job, None, desk.cancel)  # type: ignore[arg-type]
    assert until(lambda: len(desk.imported) == 4)
    assert not desk.asked
    ahead.build([row("one", case=True), row("two")])
    assert quick(ahead.wait_for_cases)
    settled(ahead)
    assert desk.kernels() == ["Kone", "Ktwo"]
    assert len(desk.builders) == 4
    ahead.close()


def test_builders_that_never_hear_of_a_row_end_with_the_job(desk: Workshop) -> None:
    ahead = Prebuild(desk, "the source", desk.job, None, desk.cancel)  # type: ignore[arg-type]
    assert until(lambda: len(desk.imported) == 4)
    assert quick(ahead.close)
    settled(ahead)


def test_builders_that_fail_before_there_are_rows_are_replaced(desk: Workshop) -> None:
    real = desk.builder

    def builder(source: str, scratch: Path) -> Any:
        raise ZygoteDied("planted")

    desk.builder = builder  # type: ignore[method-assign]
    ahead = Prebuild(desk, "the source", desk.job, None, desk.cancel)  # type: ignore[arg-type]
    settled(ahead)
    assert not desk.offered, "nothing was tried yet"
    desk.builder = real  # type: ignore[method-assign]
    ahead.build([row("one", case=True), row("two")])
    assert quick(ahead.wait_for_cases)
    settled(ahead)
    ahead.close()
    assert desk.kernels() == ["Kone", "Ktwo"]
    assert len(desk.offered) == 1
    desk.builders.clear()
    build_all(desk, row("one", case=True), row("two"))
    assert not desk.builders, "what they built is listed"


def test_nothing_starts_early_for_a_source_that_was_built(desk: Workshop) -> None:
    build_all(desk, row("one", case=True))
    desk.builders.clear()
    ahead = desk.begin(row("one", case=True))
    settled(ahead)
    assert not desk.builders
    ahead.close()


def test_forms_of_one_module_are_waited_for_together(desk: Workshop) -> None:
    gate = threading.Event()
    rows = [row("one", case=True), row("one") | {"form": "residual", "entry": "second"}]
    desk.answer = lambda entry: well(entry) if entry == "one" or gate.wait(10.0) else None
    ahead = desk.begin(*rows)
    threading.Timer(0.2, gate.set).start()
    ahead.wait_for_cases()
    assert desk.kernels() == ["Kone", "Ksecond"]
    ahead.close()


def test_a_builder_that_never_answers_is_waited_for_once(desk: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuild, "WAIT_S", 0.3)
    desk.hang = {"bad", "worse"}
    ahead = desk.begin(row("bad", case=True), row("good", case=True), row("worse"))
    began = time.monotonic()
    ahead.wait_for_cases()
    assert time.monotonic() - began > 0.25
    assert quick(lambda: ahead.before_make("worse"), 0.2), "the time to wait is given once"
    assert desk.kernels() == ["Kgood"]
    assert quick(ahead.close)
    assert desk.kernels(ahead.store.path) == ["Kgood"], "what there is serves the next run"
    assert desk.offered == [], "no compiler is started while the job goes on to be timed"


def test_waiting_ends_when_the_job_is_cancelled(desk: Workshop) -> None:
    desk.hang = {"bad"}
    ahead = desk.begin(row("bad", case=True))
    threading.Timer(0.1, desk.cancel.set).start()
    assert quick(ahead.wait_for_cases)
    ahead.close()


def test_builders_that_die_are_not_waited_for(desk: Workshop) -> None:
    def dies(entry: str) -> Any:
        raise ChildGone("the process ended", "signal 11 (SIGSEGV)", "", None)

    desk.answer = dies
    ahead = desk.begin(*[row(str(n), case=True) for n in range(9)])
    assert quick(ahead.wait_for_cases)
    ahead.close()


@pytest.mark.parametrize(
    "end", [ChildGone("the process ended", "signal 11 (SIGSEGV)", "", None), wire.TimedOut("planted"), OSError("full")]
)
def test_a_row_whose_builder_ended_is_not_waited_for(desk: Workshop, end: Exception) -> None:
    """Not even while others build on."""
    begun = threading.Event()

    def answer(entry: str) -> Any:
        if entry == "case" and begun.wait(10.0):
            raise end
        begun.set()

    desk.answer = answer
    ahead = desk.begin(row("case", case=True), row("slow"))
    assert quick(ahead.wait_for_cases)
    assert ahead.has_cases()
    assert ahead._at_work
    ahead.close()
    desk.answer = well
    build_all(desk, row("case", case=True), row("slow"))
    assert sorted(desk.asked) == ["case", "case", "slow", "slow"], "what did not succeed is built again"


def test_what_failed_is_settled_but_not_built(desk: Workshop) -> None:
    desk.answer = lambda entry: {"done": [[0] * (entry == "well")], "failed": "MemoryError: " * (entry != "well")}
    rows = [row("badly", case=True), row("well", case=True)]
    ahead = desk.begin(*rows)
    assert quick(ahead.wait_for_cases)
    settled(ahead)
    ahead.close()
    build_all(desk, *rows)
    assert sorted(desk.asked) == ["badly", "badly", "well"]


def test_builders_that_do_not_start_are_not_waited_for(desk: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(source: str, scratch: Path) -> Any:
        raise ZygoteDied("planted")

    monkeypatch.setattr(desk, "builder", refuses)
    ahead = desk.begin(row("one", case=True))
    assert quick(ahead.wait_for_cases)
    ahead.close()


def test_what_builders_leave_is_kept_as_rows_end(desk: Workshop) -> None:
    """Without anybody waiting, and for the next run of the same source only."""
    desk.hang = {"late"}
    ahead = desk.begin(row("one", case=True), row("two", case=True), row("late"))
    ahead.wait_for_cases()
    assert desk.kernels(ahead.store.path) == ["Kone", "Ktwo"]
    ahead.close()
    again = desk.begin(row("one", case=True))
    assert desk.kernels(again.cache) == ["Kone", "Ktwo"]
    settled(again)
    again.close()


@pytest.mark.parametrize("late", [{"late"}, set()])
def test_nothing_is_kept_of_what_the_candidate_leaves(desk: Workshop, late: set[str]) -> None:
    """Whether the run ends before all is built or not: the candidate has seen inputs."""
    desk.hang = late
    seen = desk.job / "triton" / "Kseen"
    seen.mkdir(parents=True)
    (seen / "early.cubin").write_bytes(b"inputs seen")
    ahead = desk.begin(row("one", case=True), row("late"))
    ahead.wait_for_cases()
    (seen / "kernel.cubin").write_bytes(b"inputs seen")
    if not late:
        settled(ahead)
    ahead.close()
    assert "Kseen" not in desk.kernels(ahead.store.path)


@pytest.mark.parametrize(
    ("inputs", "built"),
    [
        ([[[7, 64], [7]]], []),
        ([[[7, 64], [7]], [[7, 96], [7]], [[7, 32], [7]], [[9, 96], [7]]], [[[7, 96], [7]], [[9, 96], [7]]]),
        ([[[64, 64], [7]]], []),
        ([[[7, 64], [9]]], [[[7, 64], [9]]]),
        ([[[3, 7, 64], [7]]], [[[3, 7, 64], [7]]]),
    ],
)
def test_a_later_run_builds_for_new_inputs_only(desk: Workshop, inputs: Any, built: Any) -> None:
    """Whatever their number of rows. One dimension is no number of rows: it may be a width."""
    first = row("one", case=True) | {"inputs": [[[1, 64], [7]], [[1, 32], [7]]]}
    build_all(desk, first)
    desk.shapes.clear()
    rows = [row("one", case=True) | {"inputs": inputs}, first]
    build_all(desk, *rows)
    assert desk.shapes == ([built] if built else [])
    build_all(desk, *rows)
    assert desk.shapes == ([built] if built else []), "both runs are remembered"
    others = [first | {"key": "another"}, first | {"form": "residual"}]
    desk.shapes.clear()
    build_all(desk, *others)
    assert desk.shapes == [first["inputs"]] * 2


def test_what_can_not_be_copied_is_built_again(desk: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = build_all(desk, row("one"))
    real = build_store.copy_cache

    def fails(source: Path, *rest: Any, **more: Any) -> int:
        if source == ahead.store.path:
            raise OSError("planted")
        return real(source, *rest, **more)

    monkeypatch.setattr(build_store, "copy_cache", fails)
    build_all(desk, row("one"))
    assert desk.asked == ["one", "one"]


@pytest.mark.parametrize("text", ["[[", "7", "[[1]]", '{"one": 1}', "null", '"one"', "", "[" * 100_000])
def test_a_list_that_can_not_be_read_lists_nothing(desk: Workshop, text: str) -> None:
    ahead = build_all(desk, row("one"))
    ahead.store.path.with_suffix(".json").write_text(text, encoding="utf-8")
    build_all(desk, row("one"))
    build_all(desk, row("one"))
    assert desk.asked == ["one", "one"]


@pytest.mark.parametrize("name", ["rows.json", "list.json", ".json"])
def test_names_that_builders_choose_do_not_block_the_list(
    desk: Workshop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(prebuild, "_EARLY", 0)  # the last builder is the one that is asked

    def answer(entry: str) -> Any:
        (desk.builders[-1].scratch / "triton" / name).mkdir(parents=True)
        return well(entry)

    desk.answer = answer
    for n in range(3):
        ahead = build_all(desk, row(f"n{n}"))
    build_all(desk, *[row(f"n{n}") for n in range(3)])
    assert len(desk.asked) == 3
    assert {p.name for p in ahead.store.path.iterdir()} == {name, "Kn0", "Kn1", "Kn2"}
    assert set(ahead.store.path.parent.iterdir()) == {ahead.store.path, ahead.store.path.with_suffix(".json")}


def test_a_list_that_can_not_be_written_leaves_no_part(desk: Workshop) -> None:
    ahead = desk.begin(row("one"))
    settled(ahead)
    ahead.store.path.with_suffix(".json").unlink()
    ahead.store.path.with_suffix(".json").mkdir()
    ahead.close()
    build_all(desk, row("two"))
    assert set(ahead.store.path.parent.iterdir()) == {ahead.store.path, ahead.store.path.with_suffix(".json")}


def test_where_nothing_can_be_kept_the_candidate_is_served_all_the_same(
    desk: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    kept = BuildStore(desk.settings.cache_dir / "builds", "the source", "9.0").path
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"in the way")
    build_all(desk, row("one"), row("two"))
    assert desk.kernels() == ["Kone", "Ktwo"]
    kept.unlink()
    build_all(desk, row("one"), row("two"))
    assert len(desk.asked) == 4, "what is not kept is not listed"


def test_the_oldest_builds_go_with_all_that_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in use stay, even if nothing new was built for them."""

    def store(name: str) -> BuildStore:
        made = BuildStore(tmp_path, name, "9.0")
        made.path = tmp_path / name
        return made

    for age, name in enumerate(["new", "old", "used", "older"]):
        (tmp_path / name / "Kone").mkdir(parents=True)
        store(name).extend({"one"})
        (tmp_path / f".{name}.1a2b3c4d").touch()
        for path in (tmp_path / name, *tmp_path.glob(f"{name}.json"), *tmp_path.glob(f".{name}.*")):
            os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(build_store, "KEPT", 3)
    store("used").extend(set())
    store("another").extend({"one"})
    stay = {f"{name}{end}" for name in ("another", "used", "new") for end in ("", ".json")} - {"another"}
    assert {path.name for path in tmp_path.iterdir()} == stay | {".used.1a2b3c4d", ".new.1a2b3c4d"}
    assert store("used").serve(tmp_path / "cache", None) == {"one"}


@pytest.mark.parametrize("target", ["nowhere", "elsewhere"])
def test_links_among_the_stores_go_in_their_turn_and_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    stores, elsewhere = tmp_path / "builds", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    stores.mkdir()
    for age, name in enumerate(["new", "old", "older"]):
        (stores / name).mkdir()
        os.utime(stores / name, (1e9 - age, 1e9 - age))
    (stores / "link").symlink_to(tmp_path / target)
    os.utime(stores / "link", (1e9 - 0.5, 1e9 - 0.5), follow_symlinks=False)
    monkeypatch.setattr(build_store, "KEPT", 3)
    made = BuildStore(stores, "a source", "9.0")
    made.path = stores / "a"
    made.extend({"one"})
    assert {path.name for path in stores.iterdir()} == {"a.json", "new", "link"}
    monkeypatch.setattr(build_store, "KEPT", 1)
    made.extend({"one"})
    assert {path.name for path in stores.iterdir()} == {"a.json"}
    assert (elsewhere / "file").exists(), "links are not followed"


def test_the_store_of_a_source_is_bounded_and_goes_on_to_serve(desk: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not kept any more is not listed either, so that it is built in each run that needs it."""
    build_all(desk, row("case", case=True))
    monkeypatch.setattr(build_store, "FULL_BYTES", 1)
    sizes = []
    for n in range(3):
        ahead = build_all(desk, row("case", case=True), row(f"hidden{n}"), row("again"))
        sizes.append(len(desk.kernels(ahead.store.path)))
    assert sizes == [1, 1, 1]
    assert collections.Counter(desk.asked) == {"case": 1, "again": 3, "hidden0": 1, "hidden1": 1, "hidden2": 1}


def test_inputs_that_went_well_are_listed_although_others_failed(desk: Workshop) -> None:
    inputs = [[[1, 64]], [[1, 32]], [[1, 96]]]
    desk.answer = lambda entry: {"done": [[0, 2]], "failed": "ValueError: not 32"}
    for _ in range(2):
        build_all(desk, row("one") | {"inputs": inputs})
    assert desk.shapes == [inputs, [inputs[1]]]


def test_calls_that_will_not_be_made_are_not_built() -> None:
    """Outside a declared domain, or in place of others; inputs that another call has, too, are built."""
    rows = [row("one", shapes=3) | {"calls": [[0, 4], [1], [2, 3]]}, row("two") | {"calls": [[5]]}]
    inputs = rows[0]["inputs"]
    assert prebuild.needed(rows, [1, 2, 5]) == [row("one") | {"inputs": [inputs[0], inputs[2]]}]
    assert prebuild.needed(rows, []) == [row("one", shapes=3), row("two")]


def test_signatures_are_offered_once_all_have_answered(desk: Workshop) -> None:
    gate = threading.Event()
    told = {"one": [NORM], "two": [NORM, ["i32"]]}
    desk.answer = lambda entry: {**well(entry), "signatures": told[entry]} if entry == "one" or gate.wait(10) else None
    ahead = desk.begin(row("one", case=True), row("two"))
    ahead.wait_for_cases()
    assert desk.offered == []
    gate.set()
    settled(ahead)
    assert [sorted(s) for s in desk.offered] == [[tuple(NORM), ("i32",)]]
    ahead.close()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"done": "many", "failed": ["x"], "signatures": "*bf16"},
        {"done": [7], "failed": ""},
        {"done": [[-1, "0", None, [0]]], "failed": ""},
        {"done": 1, "failed": {"a": 1}, "signatures": {"0": NORM}},
        {"done": 1, "failed": "", "signatures": [["tensordesc<bf16[1]>"], [NORM], 7, None]},
        {"done": 1, "failed": "x" * 100000, "signatures": [["void f(); //"]] * 1000},
    ],
)
def test_a_builder_that_claims_nonsense_is_not_believed(desk: Workshop, answer: dict[str, Any]) -> None:
    desk.answer = lambda entry: answer
    ahead = desk.begin(row("one", case=True))
    assert quick(ahead.wait_for_cases)
    settled(ahead)
    ahead.close()
    assert [s for offer in desk.offered for s in offer] == []
    build_all(desk, row("one", case=True))
    assert desk.asked == ["one", "one"], "nothing counts as built"


def test_no_job_offers_more_than_a_claim_may_hold(desk: Workshop) -> None:
    desk.answer = lambda entry: {"signatures": [["i32"] * (int(entry) * 20 + n) for n in range(20)]}
    ahead = desk.begin(*[row(str(n)) for n in range(4)])
    settled(ahead)
    assert [len(s) for s in desk.offered] == [prebuild.MOST_SIGNATURES]
    ahead.close()
