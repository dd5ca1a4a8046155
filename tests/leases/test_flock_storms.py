"""Many processes, killed at random instants, on one device; and the files that they leave."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from fk_core import filelock
from fk_core.errors import HarnessError, LeaseTimeout
from fk_core.leases import flock, tickets
from fk_core.leases.flock import FlockLeases
from fk_core.records.device import Device
from fk_core.settings import Settings
from tests.descriptors import descriptors

CPU = Device(kind="cpu", uuid="cpu")
LIMIT_S = 30.0
IDLE, SHARED, EXCLUSIVE = 0, 1, 2


@pytest.fixture
def leases(tmp_path: Path) -> FlockLeases:
    return FlockLeases(Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks"))


@dataclass(frozen=True)
class Violation:
    saw: int
    """The slot that was seen to hold as well, and its how-many-th lease that was."""
    generation: int


class Board:
    """Shared memory in which every process says what it holds, and what it saw that must not be."""

    SLOT = struct.Struct("=iiqqq")  # held, saw (slot + 1), its generation, own generation, grants

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.memory = mmap.mmap(-1, slots * self.SLOT.size)

    def read(self, slot: int) -> tuple[int, int, int, int, int]:
        return self.SLOT.unpack_from(self.memory, slot * self.SLOT.size)

    def enter(self, slot: int, held: int) -> None:
        _, saw, at, generation, grants = self.read(slot)
        self.SLOT.pack_into(self.memory, slot * self.SLOT.size, held, saw, at, generation + 1, grants + 1)
        for other in range(self.slots):
            theirs, _, _, their_generation, _ = self.read(other)
            if other != slot and theirs != IDLE and EXCLUSIVE in (theirs, held):
                struct.pack_into("=iq", self.memory, slot * self.SLOT.size + 4, other + 1, their_generation)

    def leave(self, slot: int) -> None:
        struct.pack_into("=i", self.memory, slot * self.SLOT.size, IDLE)

    def violations(self, killed: set[int]) -> list[Violation]:
        """A killed process can't clear its slot: what is seen of its last lease is no violation."""
        found = []
        for slot in range(self.slots):
            _, saw, at, _, _ = self.read(slot)
            if saw and not (saw - 1 in killed and self.read(saw - 1)[3] == at):
                found.append(Violation(saw - 1, at))
        return found

    def grants(self) -> int:
        return sum(self.read(slot)[4] for slot in range(self.slots))


def worker(leases: FlockLeases, board: Board, slot: int, seed: int) -> None:
    draw = random.Random(seed)
    while True:
        mode = draw.choice(["shared", "exclusive"])
        with leases.acquire(CPU, mode, purpose=f"slot {slot}", timeout_s=LIMIT_S) as lease:
            board.enter(slot, SHARED if mode == "shared" else EXCLUSIVE)
            time.sleep(draw.random() * 0.004)
            if mode == "shared" and draw.random() < 0.5:
                board.leave(slot)
                lease.upgrade(timeout_s=LIMIT_S)
                board.enter(slot, EXCLUSIVE)
                time.sleep(draw.random() * 0.002)
            board.leave(slot)


def storm(leases: FlockLeases, kills: int, at_once: int) -> tuple[Board, list[Violation]]:
    """Keeps ``at_once`` workers going and kills one after another."""
    board = Board(kills + at_once)
    draw = random.Random(7)
    running: dict[int, int] = {}
    killed: set[int] = set()
    try:
        for slot in range(kills + at_once):
            pid = os.fork()
            if pid == 0:
                try:
                    worker(leases, board, slot, slot)
                finally:
                    os._exit(1)
            running[pid] = slot
            if len(running) > at_once:
                time.sleep(draw.random() * 0.06)
                victim = draw.choice(sorted(running))
                os.kill(victim, signal.SIGKILL)
                _, status = os.waitpid(victim, 0)
                assert os.WTERMSIG(status) == signal.SIGKILL, "a worker failed on its own"
                killed.add(running[victim])
                board.leave(running.pop(victim))
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        for pid, slot in running.items():
            os.waitpid(pid, 0)
            killed.add(slot)
    return board, board.violations(killed)


def test_storm_of_kills(leases: FlockLeases) -> None:
    board, violations = storm(leases, kills=60, at_once=6)
    assert violations == []
    assert board.grants() > 60
    with leases.acquire(CPU, "exclusive", timeout_s=10.0):
        queue = leases.queue("cpu")
        assert (len(queue.holders), len(queue.waiting)) == (1, 0)
    left = [p.name for p in (leases._settings.lock_dir / "devices" / "cpu").iterdir() if p.name.startswith("t-")]
    assert left == [], "tickets of the dead were not removed"


def test_the_storm_sees_a_planted_fault(leases: FlockLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flock, "first_blocker", lambda number, mode, queue: None)
    _, violations = storm(leases, kills=10, at_once=6)
    assert violations


def test_a_child_that_outlives_its_killed_parent_keeps_nothing(leases: FlockLeases) -> None:
    gate, opened = os.pipe()
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opened)
        leases.acquire(CPU, "exclusive")
        if os.fork() == 0:
            os.write(say, b"x")
            os.read(gate, 1)
            os._exit(0)
        time.sleep(LIMIT_S)
        os._exit(1)
    assert os.read(said, 1) == b"x"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    leases.acquire(CPU, "exclusive", timeout_s=10.0).release()
    for fd in (gate, opened, said, say):
        os.close(fd)


def test_a_subprocess_that_outlives_its_killed_parent_keeps_nothing(leases: FlockLeases) -> None:
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        leases.acquire(CPU, "exclusive")
        child = subprocess.Popen(["sleep", "20"], close_fds=False)
        os.write(say, child.pid.to_bytes(4, "little"))
        time.sleep(LIMIT_S)
        os._exit(1)
    orphan = int.from_bytes(os.read(said, 4), "little")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        leases.acquire(CPU, "exclusive", timeout_s=10.0).release()
    finally:
        os.kill(orphan, signal.SIGKILL)
        os.close(said)
        os.close(say)


@pytest.mark.parametrize("damage", [b"", b"s", b"\x00" * 100, b"x 1 2\n{", b"\xff\xfe\n\n{}"])
def test_a_damaged_ticket_counts_as_exclusive_while_its_owner_lives(leases: FlockLeases, damage: bytes) -> None:
    with leases.acquire(CPU, "shared"):
        ticket = next((leases._settings.lock_dir / "devices" / "cpu").glob("t-*"))
        ticket.write_bytes(damage)
        if damage[:1] != b"s":
            with pytest.raises(LeaseTimeout):
                leases.acquire(CPU, "shared", timeout_s=0)
        assert len(leases.queue("cpu").holders) == 1
    leases.acquire(CPU, "exclusive", timeout_s=0).release()


def test_a_ticket_with_a_living_but_unrelated_pid_is_dead(leases: FlockLeases) -> None:
    """Process ids are given out again; only the lock counts."""
    leases.acquire(CPU, "shared").release()
    directory = leases._settings.lock_dir / "devices" / "cpu"
    fake = directory / "t-0000000000000001-00000000"
    fake.write_text(f'x {"0" * 20} {"0" * 20}\n{{"pid": {os.getppid()}, "purpose": "", "hold_s": 900}}\n', "utf-8")
    leases.acquire(CPU, "exclusive", timeout_s=0).release()
    assert not fake.exists()


def test_removed_tickets_are_noticed(leases: FlockLeases) -> None:
    with leases.acquire(CPU, "exclusive") as lease:
        next((leases._settings.lock_dir / "devices" / "cpu").glob("t-*")).unlink()
        assert not lease.held


def test_links_are_not_followed(leases: FlockLeases, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", "utf-8")
    leases.acquire(CPU, "shared").release()
    directory = leases._settings.lock_dir / "devices" / "cpu"
    (directory / "t-0000000000000001-00000000").symlink_to(victim)
    leases.acquire(CPU, "exclusive", timeout_s=0).release()
    (directory / "mutex").unlink()
    (directory / "mutex").symlink_to(victim)
    with pytest.raises(HarnessError, match="FK_LOCK_DIR"):
        leases.acquire(CPU, "exclusive", timeout_s=0)
    assert victim.read_text("utf-8") == "precious"


def test_a_lock_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    leases = FlockLeases(Settings(home=tmp_path, lock_dir=tmp_path / "locks"))
    with pytest.raises(HarnessError, match="FK_LOCK_DIR"):
        leases.acquire(CPU, "shared", timeout_s=0)


def test_modes_of_what_is_made(leases: FlockLeases) -> None:
    old = os.umask(0o077)
    try:
        with leases.acquire(CPU, "shared"):
            root = leases._settings.lock_dir
            found = {p.name[:2]: stat.S_IMODE(p.stat().st_mode) for p in (root, *root.rglob("*"))}
    finally:
        os.umask(old)
    assert found == {"lo": 0o1777, "de": 0o1777, "cp": 0o1777, "mu": 0o666, "t-": 0o644}


def as_user(uid: int, action: Callable[[], None]) -> int:
    """Runs ``action`` in a child under another user id; its exit status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            action()
            code = 0
        except BaseException as e:  # noqa: BLE001 - the parent sees only the exit status; the text helps
            sys.stderr.write(f"{type(e).__name__}: {e}\n")
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users can write to; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="fk-") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
@pytest.mark.parametrize("maker", [0, 61001])
def test_users_share_one_queue(open_directory: Path, maker: int) -> None:
    leases = FlockLeases(Settings(home=open_directory / "home", lock_dir=open_directory / "locks"))

    def use() -> None:
        leases.acquire(CPU, "exclusive", timeout_s=10.0).release()

    def blocked() -> None:
        with pytest.raises(LeaseTimeout):
            leases.acquire(CPU, "shared", timeout_s=0.05)

    def abandon() -> None:
        leases.acquire(CPU, "exclusive", timeout_s=10.0)
        os._exit(0)

    assert as_user(maker, use) == 0
    assert as_user(61002, use) == 0
    assert as_user(61001, abandon) == 0
    assert as_user(61002, use) == 0, "a dead ticket of another user must not block"
    with leases.acquire(CPU, "exclusive", timeout_s=10.0):
        assert as_user(61002, blocked) == 0


def test_a_stopped_process_in_the_mutex_is_named(leases: FlockLeases) -> None:
    leases.acquire(CPU, "shared").release()
    path = leases._settings.lock_dir / "devices" / "cpu" / "mutex"
    with filelock.mutex(path, 1.0), pytest.raises(LeaseTimeout, match="queue for cpu") as caught:
        leases.acquire(CPU, "shared", timeout_s=0)
    if Path("/proc/locks").exists():
        assert str(os.getpid()) in str(caught.value)


def openings(inode: int) -> int:
    """How often this process has the file open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(1 for link in links if link.exists() and link.stat().st_ino == inode)


def test_a_mutex_that_was_cleaned_away_is_not_trusted(tmp_path: Path) -> None:
    """Who waited for a file that has lost its name must not enter while another holds the new file."""
    path = tmp_path / "mutex"
    inside = threading.Event()

    def enter() -> None:
        with filelock.mutex(path, LIMIT_S):
            inside.set()

    with ThreadPoolExecutor(1) as pool:
        with filelock.mutex(path, 1.0):
            old = path.stat().st_ino
            waiting = pool.submit(enter)
            while openings(old) < 2:
                time.sleep(0.005)
            path.unlink()
            new = filelock.Held(filelock.open_lock_file(path))
            assert filelock.try_lock(new.fd)
        assert not inside.wait(0.2)
        new.close()
        waiting.result(LIMIT_S)


def test_drafts_of_the_dead_are_swept(leases: FlockLeases) -> None:
    leases.acquire(CPU, "shared").release()
    directory = leases.directory("cpu")
    draft = directory.path / ".0123456789abcdef"
    draft.touch()
    directory.sweep_drafts(older_than_s=60.0)
    assert draft.exists()
    directory.sweep_drafts(older_than_s=-1.0)
    assert not draft.exists()


def test_no_descriptor_is_lost(leases: FlockLeases) -> None:
    leases.acquire(CPU, "shared").release()
    before = descriptors()
    for _ in range(50):
        with leases.acquire(CPU, "shared") as lease:
            lease.upgrade()
            with pytest.raises(LeaseTimeout):
                leases.acquire(CPU, "shared", timeout_s=0)
            leases.status()
    assert not descriptors() - before


def test_a_lack_of_descriptors_grants_nothing(leases: FlockLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def starved(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name.startswith("t-"):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real(path, flags, mode)

    with leases.acquire(CPU, "exclusive"):
        monkeypatch.setattr(os, "open", starved)
        with pytest.raises(OSError, match="Too many open files"):
            leases.acquire(CPU, "shared", timeout_s=0)
        monkeypatch.undo()
        assert leases.queue("cpu").waiting == []


def test_a_ticket_that_is_removed_while_it_waits_is_not_granted(leases: FlockLeases) -> None:
    holder = leases.acquire(CPU, "exclusive")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(leases.acquire, CPU, "exclusive", timeout_s=LIMIT_S)
        while not leases.queue("cpu").waiting:
            time.sleep(0.005)
        max((leases._settings.lock_dir / "devices" / "cpu").glob("t-*")).unlink()
        holder.release()
        with pytest.raises(HarnessError, match="was removed"):
            waiting.result(LIMIT_S)


def test_granting_is_decided_by_order_alone() -> None:
    def seen(number: int, mode: tickets.Mode) -> tickets.Seen:
        return tickets.Seen(number, "", mode, 1, "", 0.0, 0.0, 0.0)

    modes = "ssxsxx"
    queue = [seen(n, "shared" if m == "s" else "exclusive") for n, m in enumerate(modes)]
    granted = [tickets.first_blocker(t.number, t.mode, queue) is None for t in queue]
    assert granted == [True, True, False, False, False, False]
    assert tickets.first_blocker(3, "shared", queue) == queue[2]


def test_acquire_takes_little(leases: FlockLeases) -> None:
    """Prints what an uncontended lease costs; asserts nothing about time."""
    took = []
    for _ in range(50):
        start = time.perf_counter()
        lease = leases.acquire(CPU, "exclusive")
        took.append(time.perf_counter() - start)
        lease.release()
    sys.stderr.write(f"acquire: median {sorted(took)[25] * 1e3:.3f} ms, worst {max(took) * 1e3:.3f} ms\n")
