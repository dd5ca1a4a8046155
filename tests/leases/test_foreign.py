"""Who belongs to a registered harness, and who does not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fk_core import alive
from fk_core.errors import HarnessError
from fk_core.leases.foreign import Foreign, Registry
from fk_core.leases.nvml import GpuProcess
from fk_core.settings import Settings

NOWHERE = 2**22 + 17  # above the largest process id that the kernel gives out


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(Settings(home=tmp_path, lock_dir=tmp_path / "locks"))


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is no descendant of the one that registers: here, we register a sibling of it."""
    child = subprocess.Popen(["sleep", "60"])
    yield child.pid
    child.kill()
    child.wait()


@pytest.fixture
def harness() -> Iterator[int]:
    """Stands for a registered harness; it has a child of its own."""
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
    yield child.pid
    for pid in [*children(child.pid), child.pid]:
        os.kill(pid, signal.SIGKILL)
    child.wait()


def children(pid: int) -> list[int]:
    deadline = time.monotonic() + 10.0
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(p) for p in found]


def test_descendants_of_a_registered_process_are_ours(registry: Registry, harness: int, stranger: int) -> None:
    grandchild = children(harness)[0]
    on_gpu = [GpuProcess(grandchild, 10), GpuProcess(stranger, 20), GpuProcess(harness, None)]
    with registry.register(harness):
        assert registry.among(on_gpu) == [Foreign(stranger, "sleep", 20)]
    assert {f.pid for f in registry.among(on_gpu)} == {grandchild, stranger, harness}


def test_text_of_a_foreign_process() -> None:
    assert str(Foreign(12, "python", 1024)) == "12 python 1024"
    assert str(Foreign(12, "python", None)) == "12 python unknown"


def test_a_registration_ends_with_the_process_that_made_it(registry: Registry, stranger: int) -> None:
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        registry.register(stranger)
        os.write(say, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(said, 1)
    assert registry.pids() == {stranger}
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert registry.pids() == set()
    assert list(registry._dir.iterdir()) == [], "what the dead leave is removed"
    os.close(said)
    os.close(say)


def test_a_pid_that_was_given_out_again_does_not_count(registry: Registry) -> None:
    child = subprocess.Popen(["sleep", "60"])
    with registry.register(child.pid):
        assert registry.pids() == {child.pid}
        child.kill()
        child.wait()
        assert registry.pids() == set()
    marked = alive.mark()
    pid, start, boot = marked.split(":")
    assert alive.is_alive(marked)
    assert not alive.is_alive(f"{pid}:{int(start) - 1}:{boot}")
    assert not alive.is_alive(f"{pid}:{start}:another-boot")


@pytest.mark.parametrize("text", ["", "x", "1", "1:", ":::", "1:None:", "-1:0:", "99999999999999999999:1:"])
def test_marks_that_are_none(text: str) -> None:
    assert not alive.is_alive(text)


def test_a_zombie_is_not_alive() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert alive.started_ticks(pid) is None
    os.waitpid(pid, 0)


def test_what_is_not_there_cannot_be_registered(registry: Registry) -> None:
    with pytest.raises(HarnessError, match=f"no process {NOWHERE}"):
        registry.register(NOWHERE)


def test_ids_of_the_host_are_taken_for_ours_only_as_far_as_ours_are_unlisted(registry: Registry, stranger: int) -> None:
    judge = os.getpid()
    with registry.register():
        unseen = [GpuProcess(NOWHERE, 5), GpuProcess(NOWHERE + 1, 6)]
        assert [f.pid for f in registry.among(unseen)] == [NOWHERE, NOWHERE + 1]
        assert [f.pid for f in registry.among(unseen, {judge})] == [NOWHERE + 1]
        assert registry.among(unseen, {judge, stranger}) == []
        assert [f.pid for f in registry.among([*unseen, GpuProcess(judge, 1)], {judge})] == [NOWHERE, NOWHERE + 1]


def test_links_and_rubbish_among_the_registrations(registry: Registry, tmp_path: Path) -> None:
    with registry.register():
        (registry._dir / "p-link").symlink_to(tmp_path)
        (registry._dir / "p-rubbish").write_bytes(b"\xff\xfe")
        assert registry.pids() == {os.getpid()}
