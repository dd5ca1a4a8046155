"""What every lease backend must do, whatever it is made of."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fk_core.errors import Cancelled, HarnessError, LeaseTimeout
from fk_core.leases import base
from fk_core.leases.base import Lease, LeaseBackend, Mode
from fk_core.records.device import Device, Holder
from fk_core.settings import Settings

CPU = Device(kind="cpu", uuid="cpu")
GPU = Device(kind="cuda", uuid="GPU-11111111-2222-3333-4444-555555555555", index=0)
LONG_S = 20.0


def until(what: Callable[[], bool], limit_s: float = LONG_S) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


@pytest.fixture(params=["flock"])
def leases(request: pytest.FixtureRequest, tmp_path: Path) -> LeaseBackend:
    return base.load(request.param, Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks"))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def queued(leases: LeaseBackend, pool: ThreadPoolExecutor, mode: Mode, purpose: str) -> Future[Lease]:
    """Starts an acquire in a thread; returns once it stands in the queue or is granted."""
    future = pool.submit(leases.acquire, CPU, mode, purpose=purpose, timeout_s=LONG_S)
    until(lambda: purpose in purposes(leases))
    return future


def purposes(leases: LeaseBackend) -> list[str]:
    queue = leases.queue(CPU.uuid)
    return [h.purpose for h in (*queue.holders, *queue.waiting)]


def forked(action: Callable[[], None]) -> int:
    """Runs ``action`` in a forked child; the caller reaps it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return pid


def test_shared_leases_run_together_and_exclusive_ones_alone(leases: LeaseBackend) -> None:
    with leases.acquire(CPU, "shared") as one, leases.acquire(CPU, "shared", timeout_s=0) as two:
        assert one.held
        assert two.held
        with pytest.raises(LeaseTimeout):
            leases.acquire(CPU, "exclusive", timeout_s=0)
    with leases.acquire(CPU, "exclusive", timeout_s=0):
        for mode in ("shared", "exclusive"):
            with pytest.raises(LeaseTimeout):
                leases.acquire(CPU, mode, timeout_s=0)
    leases.acquire(CPU, "exclusive", timeout_s=0).release()


def test_devices_do_not_share_a_queue(leases: LeaseBackend) -> None:
    with leases.acquire(CPU, "exclusive"), leases.acquire(GPU, "exclusive", timeout_s=0) as other:
        assert other.device == GPU
        assert set(leases.status()) == {CPU.uuid, GPU.uuid}


def test_first_come_first_served(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    order: list[int] = []
    first = leases.acquire(CPU, "exclusive")

    def take(n: int, lease: Lease) -> None:
        order.append(n)
        lease.release()

    futures = []
    for n in range(6):
        future = queued(leases, pool, "exclusive", f"number {n}")
        futures.append(pool.submit(lambda n=n, f=future: take(n, f.result(LONG_S))))
    assert purposes(leases)[1:] == [f"number {n}" for n in range(6)]
    first.release()
    for done in futures:
        done.result(LONG_S)
    assert order == list(range(6))


def test_a_shared_request_does_not_overtake_a_waiting_exclusive_one(
    leases: LeaseBackend, pool: ThreadPoolExecutor
) -> None:
    reader = leases.acquire(CPU, "shared")
    writer = queued(leases, pool, "exclusive", "writer")
    late = queued(leases, pool, "shared", "late reader")
    time.sleep(0.1)
    assert not writer.done()
    assert not late.done()
    reader.release()
    with writer.result(LONG_S):
        time.sleep(0.05)
        assert not late.done()
    late.result(LONG_S).release()


def test_readers_behind_a_writer_come_in_together(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    writer = leases.acquire(CPU, "exclusive")
    readers = [queued(leases, pool, "shared", f"reader {n}") for n in range(3)]
    writer.release()
    held = [r.result(LONG_S) for r in readers]
    assert all(lease.held for lease in held)
    for lease in held:
        lease.release()


def test_waiters_are_told_their_place_and_who_holds(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    told: list[tuple[int, list[Holder]]] = []
    holder = leases.acquire(CPU, "exclusive", purpose="timing rms_norm")
    ahead = queued(leases, pool, "exclusive", "ahead")
    mine = pool.submit(
        leases.acquire, CPU, "exclusive", timeout_s=LONG_S, on_wait=lambda place, who: told.append((place, who))
    )
    until(lambda: bool(told))
    assert told[0][0] == 2
    assert [(h.pid, h.mode, h.purpose) for h in told[0][1]] == [(os.getpid(), "exclusive", "timing rms_norm")]
    holder.release()
    with ahead.result(LONG_S):
        until(lambda: told[-1][0] == 1 and told[-1][1][0].purpose == "ahead")
    mine.result(LONG_S).release()


def test_nobody_is_told_to_wait_when_it_is_free(leases: LeaseBackend) -> None:
    told: list[int] = []
    leases.acquire(CPU, "exclusive", on_wait=lambda place, who: told.append(place)).release()
    assert told == []


def test_timeout_names_the_holder_and_leaves_no_trace(leases: LeaseBackend) -> None:
    with leases.acquire(CPU, "exclusive", purpose="validate softmax"):
        with pytest.raises(LeaseTimeout, match=rf"pid {os.getpid()} \(exclusive, validate softmax\)"):
            leases.acquire(CPU, "shared", timeout_s=0.05)
        assert leases.queue(CPU.uuid).waiting == []


def test_cancel_while_waiting(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    cancel = threading.Event()
    with leases.acquire(CPU, "exclusive"):
        waiting = pool.submit(leases.acquire, CPU, "shared", purpose="w", timeout_s=LONG_S, cancel=cancel)
        until(lambda: "w" in purposes(leases))
        cancel.set()
        with pytest.raises(Cancelled):
            waiting.result(LONG_S)
        assert leases.queue(CPU.uuid).waiting == []


def test_a_waiter_that_gives_up_lets_those_behind_it_pass(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    cancel = threading.Event()
    with leases.acquire(CPU, "shared"):
        writer = pool.submit(leases.acquire, CPU, "exclusive", purpose="w", timeout_s=LONG_S, cancel=cancel)
        until(lambda: "w" in purposes(leases))
        reader = queued(leases, pool, "shared", "reader")
        cancel.set()
        with pytest.raises(Cancelled):
            writer.result(LONG_S)
        reader.result(LONG_S).release()


def test_two_shared_holders_that_both_upgrade_do_not_deadlock(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    one, two = leases.acquire(CPU, "shared"), leases.acquire(CPU, "shared")

    def upgrade(lease: Lease) -> None:
        lease.upgrade("exclusive", timeout_s=LONG_S)
        assert lease.mode == "exclusive"
        assert len(leases.queue(CPU.uuid).holders) == 1
        lease.release()

    for done in [pool.submit(upgrade, lease) for lease in (one, two)]:
        done.result(LONG_S)


def test_an_upgrade_queues_behind_those_who_wait(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    mine = leases.acquire(CPU, "shared")
    writer = queued(leases, pool, "exclusive", "writer")
    upgraded = pool.submit(mine.upgrade, timeout_s=LONG_S)
    with writer.result(LONG_S):
        time.sleep(0.05)
        assert not upgraded.done()
    upgraded.result(LONG_S)
    assert mine.mode == "exclusive"
    mine.release()


def test_a_failed_upgrade_holds_nothing(leases: LeaseBackend) -> None:
    mine = leases.acquire(CPU, "shared")
    with leases.acquire(CPU, "shared") as other:
        with pytest.raises(LeaseTimeout):
            mine.upgrade(timeout_s=0)
        assert not mine.held
        assert len(leases.queue(CPU.uuid)) == 1
        assert other.held
    mine.release()
    with pytest.raises(HarnessError):
        mine.upgrade()
    with pytest.raises(HarnessError):
        mine.downgrade()


def test_downgrade_lets_readers_in_and_never_a_writer(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    mine = leases.acquire(CPU, "exclusive")
    reader = queued(leases, pool, "shared", "reader")
    writer = queued(leases, pool, "exclusive", "writer")
    mine.downgrade()
    assert mine.mode == "shared"
    reader.result(LONG_S).release()
    time.sleep(0.05)
    assert not writer.done()
    mine.release()
    writer.result(LONG_S).release()


def test_release_is_idempotent_and_leaves_the_block(leases: LeaseBackend) -> None:
    with pytest.raises(ZeroDivisionError), leases.acquire(CPU, "exclusive") as lease:
        raise ZeroDivisionError
    assert not lease.held
    lease.release()
    leases.acquire(CPU, "exclusive", timeout_s=0).release()


def test_seconds_are_accounted_for_by_mode(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    blocker = leases.acquire(CPU, "exclusive")
    waiting = queued(leases, pool, "shared", "mine")
    time.sleep(0.1)
    blocker.release()
    lease = waiting.result(LONG_S)
    assert lease.waited_s >= 0.1
    time.sleep(0.05)
    assert lease.exclusive_s == 0.0
    lease.upgrade()
    time.sleep(0.05)
    lease.downgrade()
    time.sleep(0.05)
    lease.release()
    assert 0.05 <= lease.exclusive_s <= lease.held_s - 0.1
    assert lease.held_s == lease.held_s, "a released lease counts no more"


def test_overdue_is_told_to_the_holder_and_shown_to_others(leases: LeaseBackend) -> None:
    told = threading.Event()
    with leases.acquire(CPU, "exclusive", purpose="slow", hold_s=0.05, on_overdue=told.set) as lease:
        assert told.wait(LONG_S)
        until(lambda: lease.overdue)
        assert "past its limit of 0.05 s" in leases.queue(CPU.uuid).holders[0].purpose
        assert lease.held, "nobody is robbed of a device on which its work still runs"
        with pytest.raises(LeaseTimeout, match="past its limit"):
            leases.acquire(CPU, "shared", timeout_s=0)


def test_no_alarm_after_a_release_in_time(leases: LeaseBackend) -> None:
    told = threading.Event()
    leases.acquire(CPU, "exclusive", hold_s=0.1, on_overdue=told.set).release()
    assert not told.wait(0.3)


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_a_killed_holder_frees_the_device(leases: LeaseBackend, mode: Mode) -> None:
    def hold() -> None:
        leases.acquire(CPU, mode, purpose="victim")
        time.sleep(LONG_S)

    pid = forked(hold)
    until(lambda: purposes(leases) == ["victim"])
    os.kill(pid, signal.SIGKILL)
    with leases.acquire(CPU, "exclusive", timeout_s=LONG_S):
        assert len(leases.queue(CPU.uuid)) == 1
    os.waitpid(pid, 0)


def test_a_killed_waiter_lets_those_behind_it_pass(leases: LeaseBackend, pool: ThreadPoolExecutor) -> None:
    with leases.acquire(CPU, "shared"):
        pid = forked(lambda: leases.acquire(CPU, "exclusive", purpose="victim", timeout_s=LONG_S).release())
        until(lambda: "victim" in purposes(leases))
        reader = queued(leases, pool, "shared", "reader")
        os.kill(pid, signal.SIGKILL)
        reader.result(LONG_S).release()
        os.waitpid(pid, 0)


def test_a_stopped_holder_is_named(leases: LeaseBackend) -> None:
    def hold() -> None:
        leases.acquire(CPU, "exclusive", purpose="stopped")
        time.sleep(LONG_S)

    pid = forked(hold)
    try:
        until(lambda: purposes(leases) == ["stopped"])
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(LeaseTimeout, match=f"pid {pid}"):
            leases.acquire(CPU, "exclusive", timeout_s=0.1)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_forked_child_neither_keeps_nor_gives_up_its_parents_lease(leases: LeaseBackend) -> None:
    lease = leases.acquire(CPU, "exclusive")
    gate, opened = os.pipe()

    def release_then_linger() -> None:
        os.close(opened)
        lease.release()
        os.read(gate, 1)

    pid = forked(release_then_linger)
    time.sleep(0.2)
    assert lease.held
    with pytest.raises(LeaseTimeout):
        leases.acquire(CPU, "shared", timeout_s=0)
    lease.release()
    leases.acquire(CPU, "exclusive", timeout_s=0).release()
    os.close(opened)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(gate)


def test_a_device_name_that_is_a_path_is_refused(leases: LeaseBackend) -> None:
    with pytest.raises(HarnessError, match="not a device UUID"):
        leases.acquire(Device(kind="cuda", uuid="../../etc"), "shared")


def test_an_unknown_backend_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="flock"):
        base.load("zookeeper", Settings(home=tmp_path, lock_dir=tmp_path))


def test_waiting_is_counted_while_it_lasts(leases: LeaseBackend) -> None:
    told: list[float] = []
    mine = leases.acquire(CPU, "shared")
    other = leases.acquire(CPU, "shared")

    def look() -> None:
        time.sleep(0.2)
        told.append(mine.waited_s)
        other.release()

    thread = threading.Thread(target=look)
    before = mine.waited_s
    thread.start()
    mine.upgrade(timeout_s=LONG_S)
    thread.join()
    after = mine.waited_s
    time.sleep(0.05)
    assert before + 0.1 < told[0] <= after == mine.waited_s
    mine.release()
