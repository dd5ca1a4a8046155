"""Strangers on the GPU while a candidate is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fk_core.cpu_clock import Crowd
from fk_core.errors import DeviceBroken
from fk_core.harness import Harness
from fk_core.leases.foreign import Registry
from fk_core.leases.nvml import GpuProcess
from fk_core.neighbours import Contended, Neighbours, strangers
from fk_core.records.report import Outcome
from fk_core.settings import Settings
from tests.harness import kit


class FakeNvml:
    """The driver's list of compute processes."""

    def __init__(self, *pids: int) -> None:
        self.pids = list(pids)
        self.asked = 0
        self.fault = ""

    def processes(self, uuid: str) -> list[GpuProcess]:
        self.asked += 1
        if self.fault:
            raise DeviceBroken(self.fault)
        return [GpuProcess(pid, 1 << 30) for pid in self.pids]


@pytest.fixture
def stranger() -> Iterator[int]:
    """A live process that belongs to nobody here: its parent is another session's."""
    code = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(120)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        yield pid
        os.kill(pid, 9)


def test_nobody(settings: Settings) -> None:
    nvml, registry = FakeNvml(), Registry(settings)
    with Neighbours(strangers(registry, nvml, "GPU-1", set())) as seen:  # type: ignore[arg-type]
        pass
    assert nvml.asked >= 2
    assert not seen.seen


def test_our_own(settings: Settings) -> None:
    """This process, its children, and another registered harness with its own."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"]) as child:
        try:
            registry = Registry(settings)
            with registry.register():
                nvml = FakeNvml(os.getpid(), child.pid)
                with Neighbours(strangers(registry, nvml, "GPU-1", set())):  # type: ignore[arg-type]
                    pass
        finally:
            child.kill()


def test_ids_of_another_namespace(settings: Settings) -> None:
    """In a container the driver may name our judge and candidate by numbers that mean nothing here."""
    registry = Registry(settings)
    with Neighbours(strangers(registry, FakeNvml(1 << 29, 1 << 30), "GPU-1", {11, 12})):  # type: ignore[arg-type]
        pass
    with (
        pytest.raises(Contended),
        Neighbours(strangers(registry, FakeNvml(1 << 28, 1 << 29, 1 << 30), "GPU-1", {11, 12})),  # type: ignore[arg-type]
    ):
        pass


def test_an_id_of_another_namespace_that_means_another_process_here(settings: Settings, stranger: int) -> None:
    look = strangers(Registry(settings), FakeNvml(stranger, 1 << 30), "GPU-1", {11, 12})  # type: ignore[arg-type]
    with Neighbours(look):
        pass


def test_a_stranger(settings: Settings, stranger: int) -> None:
    nvml = FakeNvml(stranger)
    with (
        pytest.raises(Contended, match=f"pid {stranger}") as told,
        Neighbours(strangers(Registry(settings), nvml, "GPU-1", set())),  # type: ignore[arg-type]
    ):
        pass
    assert "submit the same source again" in told.value.hint


def test_a_stranger_who_comes_and_goes(settings: Settings, stranger: int) -> None:
    nvml = FakeNvml()
    neighbours = Neighbours(strangers(Registry(settings), nvml, "GPU-1", set()))  # type: ignore[arg-type]
    neighbours.__enter__()
    nvml.pids = [stranger]
    assert kit.within(lambda: nvml.asked >= 3)
    nvml.pids = []
    with pytest.raises(Contended):
        neighbours.__exit__(None, None, None)


def test_a_stranger_beside_the_shared_part_of_a_lease(settings: Settings, stranger: int) -> None:
    look = strangers(Registry(settings), FakeNvml(stranger), "GPU-1", set())  # type: ignore[arg-type]
    with Neighbours(look, lambda: False):
        pass


def test_another_fault_is_not_hidden(settings: Settings, stranger: int) -> None:
    look = strangers(Registry(settings), FakeNvml(stranger), "GPU-1", set())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError), Neighbours(look):
        raise ZeroDivisionError


def test_a_driver_that_does_not_say(settings: Settings) -> None:
    nvml = FakeNvml()
    nvml.fault = "not supported"
    with Neighbours(strangers(Registry(settings), nvml, "GPU-1", set())) as neighbours:  # type: ignore[arg-type]
        pass
    assert "not supported" in neighbours.blind


def test_in_the_report(shared: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed on a CPU here, as if on a GPU with a stranger."""
    import contextlib

    from fk_core import validate

    @contextlib.contextmanager
    def disturbed(self: object, trial: object, lease: object) -> Iterator[None]:
        with Neighbours(lambda: FOUND):
            yield

    from fk_core.leases.foreign import Foreign

    FOUND = [Foreign(4711, "python", None)]
    monkeypatch.setattr(validate.Validation, "_undisturbed", disturbed)
    wanted = kit.request(kit.candidate("pass  # beside a stranger"), fresh=False)
    report = shared.validate(wanted)
    assert report.outcome is Outcome.CONTENDED
    assert report.blame == "machine"
    assert "4711" in report.summary
    assert not report.winner
    assert [case.outcome for case in report.cases] == [Outcome.PASSED]
    assert shared.cached_report(wanted) is None


@pytest.mark.parametrize("cores", [0.0, 1000.0])
def test_on_a_crowded_cpu_only_large_changes_are_called(
    shared: Harness, cores: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Crowd, "cores", property(lambda self: cores))
    report = shared.validate(kit.request())
    assert kit.passed(report)
    assert report.machine is not None
    assert bool(report.machine.crowd) is (cores > 0)
    t = shared.settings.timing
    assert report.machine.floor == (t.crowd_floor if cores else t.cpu_floor)
