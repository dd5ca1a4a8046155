"""The desk: started once by many, replaced when dead, quarantined when the device does not recover."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fk_core import desk as desk_module
from fk_core.desk import Desk
from fk_core.errors import Cancelled, DeviceBroken, HarnessError, LeaseTimeout
from fk_core.harness import Harness
from fk_core.records.device import Device
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
from fk_core.turns import Turns
from tests.harness import kit

GPU = Device(kind="cuda", uuid="GPU-1", index=0, name="Planted", compute_capability="9.0", driver="1")


@kit.sees_all
def test_many_threads_warm_one_desk(harness: Harness, settings: Settings) -> None:
    desk = harness.desk(harness.device())
    threads = [threading.Thread(target=desk.warm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    names = sorted(kit.processes_of(settings).values())
    assert names.count("fk-zygote") == names.count("fk-judge") == 1, names


@kit.sees_all
def test_dead_processes_are_replaced(shared: Harness) -> None:
    desk = shared.desk(shared.device())
    for role in ("judge", "zygote"):
        dead = kit.pid_of(shared.settings, role)
        kit.kill(dead)
        desk.warm()
        assert kit.pid_of(shared.settings, role) not in (0, dead)
    assert kit.passed(shared.validate(kit.request()))


@kit.sees_all
@pytest.mark.parametrize("role", ["judge", "zygote"])
def test_one_that_was_killed_between_jobs_is_no_reason_for_a_second_try(shared: Harness, role: str) -> None:
    kit.kill(kit.pid_of(shared.settings, role))
    report = shared.validate(kit.request())
    assert kit.passed(report)
    assert report.warnings == []


def test_a_zygote_that_fails_to_start_is_not_left(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(self: Zygote, timeout_s: float = 120.0) -> dict[str, Any]:
        return started(self, 0.01)

    started = Zygote.start
    with monkeypatch.context() as patch:
        patch.setattr(Zygote, "start", hangs)
        report = harness.validate(kit.request())
    assert report.outcome.value == "HARNESS_FAULT"
    assert "zygote" in report.summary
    assert kit.none_left(harness.settings)
    assert kit.passed(harness.validate(kit.request()))


def test_a_closed_harness(settings: Settings) -> None:
    harness = Harness(settings)
    desk = harness.desk(harness.device())
    harness.close()
    with pytest.raises(HarnessError, match="closed"):
        desk.warm()
    with pytest.raises(HarnessError, match="closed"):
        harness.warm()
    report = harness.validate(kit.request())
    assert report.blame == "harness"
    harness.close()
    assert kit.none_left(settings)
    assert not list(settings.scratch_dir.iterdir())


# -- turns -------------------------------------------------------------------------------------------------------------


def test_turns_keep_the_order() -> None:
    turns, order, threads = Turns("it"), [], []
    with turns.turn(timeout_s=1.0):
        for number in range(5):
            waiting = threading.Event()

            def one(number: int = number, waiting: threading.Event = waiting) -> None:
                with turns.turn(timeout_s=10.0, on_wait=lambda ahead: waiting.set()):
                    order.append(number)

            threads.append(threading.Thread(target=one))
            threads[-1].start()
            assert waiting.wait(5.0)
    for thread in threads:
        thread.join(10.0)
    assert order == [0, 1, 2, 3, 4]
    assert turns.idle_within(0.0)


def test_a_turn_that_does_not_come() -> None:
    turns, cancel = Turns("the judge"), threading.Event()
    with turns.turn(timeout_s=1.0):
        with (
            pytest.raises(LeaseTimeout, match=r"the judge did not come free within 0\.1 s: 1 jobs"),
            turns.turn(timeout_s=0.1),
        ):
            pass
        cancel.set()
        with pytest.raises(Cancelled), turns.turn(timeout_s=10.0, cancel=cancel):
            pass
    with turns.turn(timeout_s=0.0):
        pass


# -- quarantine --------------------------------------------------------------------------------------------------------


class FakeJudge:
    """A judge on a GPU whose memory the test decides on."""

    pid = 0

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.channel = self
        self.exit_status = "signal 9 (SIGKILL)"
        self.dead = False
        self._asked: list[str] = []

    def post(self, body: dict[str, Any], *, fds: tuple[int, ...] = ()) -> tuple[int, int]:
        self._asked.append(body["do"])
        return 1, len(self._asked)

    def answer(self, nonce: int, seq: int, *, timeout_s: float) -> Any:
        from fk_core.child import wire

        do = self._asked[seq - 1]
        if self.dead or self.gpu.fault == "dead":
            raise wire.Closed("the other side closed the channel")
        if self.gpu.fault:
            exception = {"type": "RuntimeError", "message": self.gpu.fault, "trace": ""}
            return wire.Frame(wire.ERROR, nonce, seq, {"exception": exception}, [])
        body = {"free": self.gpu.free, "total": 80 << 30} if do == "memory" else {}
        return wire.Frame(wire.REPLY, nonce, seq, body, [])

    def alive(self) -> bool:
        return not self.dead

    def wait(self, timeout_s: float) -> bool:
        return self.dead

    def kill(self) -> None:
        self.dead = True

    def log_tail(self) -> str:
        return ""


class FakeGpu:
    def __init__(self) -> None:
        self.free = 70 << 30
        self.fault = ""
        self.judges = 0


class PlantedDesk(Desk):
    """A desk whose processes are fakes; everything that decides about quarantine is real."""

    def __init__(self, settings: Settings, gpu: FakeGpu) -> None:
        super().__init__(settings, GPU, lambda: (_ for _ in ()).throw(AssertionError("no scratch here")))
        self.gpu = gpu

    def _start(self) -> None:
        if self._judge is None or not self._judge.alive():
            self.gpu.judges += 1
            self._judge = FakeJudge(self.gpu)  # type: ignore[assignment]
            self._first_answer()


@pytest.fixture
def planted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> PlantedDesk:
    monkeypatch.setattr(desk_module, "RETURN_S", 0.3)
    return PlantedDesk(settings, FakeGpu())


def test_a_job_that_gives_its_memory_back(planted: PlantedDesk) -> None:
    with planted.session():
        planted.gpu.free -= 500 << 20
    assert planted.quarantined == ""
    assert planted.gpu.judges == 1


def test_memory_that_comes_back_a_little_later(planted: PlantedDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "RETURN_S", 20.0)
    full = planted.gpu.free
    with planted.session():
        planted.gpu.free = full - (30 << 30)
        threading.Timer(0.3, lambda: setattr(planted.gpu, "free", full)).start()
    assert planted.quarantined == ""
    assert planted.gpu.judges == 1


def test_memory_that_a_new_judge_gets_back(planted: PlantedDesk) -> None:
    """It was the judge's own, say a leak in a library: no reason to keep the device away."""
    full = planted.gpu.free
    with planted.session():
        planted.gpu.free = full - (30 << 30)
        stop = planted._stop

        def stopped() -> None:
            planted.gpu.free = full
            stop()

        planted._stop = stopped  # type: ignore[method-assign]
    assert planted.quarantined == ""
    assert planted.gpu.judges == 2


def test_memory_that_is_lost(planted: PlantedDesk) -> None:
    full = planted.gpu.free
    with planted.session():
        planted.gpu.free = full - (30 << 30)
    assert "30720 MiB" in planted.quarantined
    with pytest.raises(DeviceBroken, match="quarantined: 30720 MiB"), planted.session():
        pass
    planted.gpu.free = full
    with planted.session():
        assert planted.quarantined == ""
    assert planted.quarantined == ""


def test_memory_that_others_use_is_not_missed(planted: PlantedDesk) -> None:
    with planted.session(alone=lambda: False):
        planted.gpu.free -= 60 << 30
    assert planted.quarantined == ""


def test_a_probe_that_fails(planted: PlantedDesk) -> None:
    with planted.session():
        planted.gpu.fault = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(DeviceBroken, match="illegal memory access"):
        planted.warm()
    assert "illegal memory access" in planted.quarantined
    planted.gpu.fault = ""
    planted.warm()
    assert planted.quarantined == ""


def test_a_judge_that_died_is_asked_about_later(planted: PlantedDesk) -> None:
    """A cancelled job must not wait for a new judge; the next one does, and only then the device is in question."""
    with planted.session() as session:
        planted.gpu.fault = "dead"
        with pytest.raises(HarnessError, match="ended"):
            session.ask("flags")
        planted.gpu.fault = ""
        planted.gpu.free -= 30 << 30
    assert planted.gpu.judges == 1
    with pytest.raises(DeviceBroken, match="30720 MiB"):
        planted.warm()


def test_quarantine_is_shown(shared: Harness) -> None:
    desk = shared.desk(shared.device())
    desk.quarantined = "planted"
    try:
        shown = {row.device.uuid: row.quarantined for row in shared.gpu_status().devices}
        assert shown[shared.device().uuid] == "planted"
        desk.warm()
        shown = {row.device.uuid: row.quarantined for row in shared.gpu_status().devices}
        assert shown[shared.device().uuid] == ""
    finally:
        desk.quarantined = ""
    assert kit.passed(shared.validate(kit.request()))


def test_a_broken_device_is_the_machines_fault(shared: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(alone: object = None) -> None:
        raise DeviceBroken("the planted device is quarantined: planted")

    monkeypatch.setattr(shared.desk(shared.device()), "warm", broken)
    report = shared.validate(kit.request())
    assert report.outcome.value == "GPU_FAULT"
    assert report.blame == "machine"
    assert kit.lease_is_free(shared.settings)


# -- giving a device back ----------------------------------------------------------------------------------------------


def unstarted(settings: Settings, device: Device) -> Desk:
    def no_run() -> Any:
        raise AssertionError("nothing is to be started")

    return Desk(settings, device, no_run)


def held_until(desk: Desk, wait: Callable[[], object]) -> contextlib.ExitStack:
    """A job's turn, and something in front of it that takes a while to give back."""
    held = contextlib.ExitStack()
    held.enter_context(desk.turn())
    held.callback(wait)
    return held


def test_a_gpu_is_given_back_behind_the_report(settings: Settings) -> None:
    """The next job has its turn only then, and who closes the desk waits for it."""
    desk, gone = unstarted(settings, GPU), threading.Event()
    desk.give_back(held_until(desk, lambda: gone.wait(20.0)))
    with pytest.raises(LeaseTimeout), desk._turns.turn(timeout_s=0.1):
        pass
    threading.Timer(0.3, gone.set).start()
    desk.close()
    assert gone.is_set()
    with desk._turns.turn(timeout_s=0.0):
        pass


def test_a_cpu_is_given_back_at_once(settings: Settings) -> None:
    desk, who = unstarted(settings, Device(kind="cpu", uuid="cpu")), list[threading.Thread]()
    desk.give_back(held_until(desk, lambda: who.append(threading.current_thread())))
    assert who == [threading.current_thread()]


@pytest.mark.parametrize("threads", [True, False])
def test_what_fails_while_a_gpu_is_given_back_keeps_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, threads: bool
) -> None:
    """Nor does a machine that has no thread left."""
    desk = unstarted(settings, GPU)

    def fails() -> None:
        raise OSError("planted")

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if not threads:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    desk.give_back(held_until(desk, fails))
    assert desk._turns.idle_within(5.0)
    for thread in threading.enumerate():
        if thread.name == "fk-give-back":
            thread.join(5.0)
    assert "planted" in caplog.text
