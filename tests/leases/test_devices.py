"""Devices as NVML tells of them, with a driver of our own making."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from fk_core.errors import DeviceBroken, NoDevice, UnknownDevice
from fk_core.leases.devices import Survey, cpu_device, resolve, survey, visible
from fk_core.leases.flock import FlockLeases
from fk_core.leases.foreign import Registry
from fk_core.leases.nvml import NoNvml, Nvml
from fk_core.leases.status import gpu_status
from fk_core.records.device import Device
from fk_core.settings import Settings


class Driver:
    """Answers like ``pynvml`` for GPUs that do not exist; raises the real library's errors."""

    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self, uuids: list[str], mig: dict[str, list[str]] | None = None) -> None:
        self.uuids = uuids
        self.mig = mig or {}
        self.running: dict[str, list[tuple[int, int | None]]] = {}
        self.fault: Exception | None = None
        self.hang: threading.Event | None = None
        self.started = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVMLError"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:
        self.started += 1
        if self.hang is not None:
            self.hang.wait(30.0)
        if self.fault is not None:
            raise self.fault

    NVML_CLOCK_SM, NVML_CLOCK_MEM = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    reasons = 0

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[which]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in [*self.uuids, *(m for parts in self.mig.values() for m in parts)]:
            raise pynvml.NVMLError_NotFound()
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200" + (" MIG 1g.18gb" if handle.startswith("MIG") else "")

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=141 << 30, used=3 << 30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetComputeMode(self, handle: str) -> int:
        return pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        if handle.startswith("MIG"):
            raise pynvml.NVMLError_NotSupported()
        return SimpleNamespace(gpu=40, memory=1)

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:
        return (1, 1) if handle in self.mig else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= len(self.mig[handle]):
            raise pynvml.NVMLError_NotFound()
        return self.mig[handle][index]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.running.get(handle, [])]


A, B, C = "GPU-aaaa0000-1", "GPU-aaaa1111-2", "GPU-cccc0000-3"
M, N = "MIG-11110000", "MIG-22220000"


def gpus(*uuids: str) -> list[Device]:
    return Nvml(Driver(list(uuids))).devices()


def test_what_is_known_of_a_gpu() -> None:
    (found,) = gpus(A)
    assert found == Device(
        kind="cuda",
        uuid=A,
        index=0,
        name="NVIDIA H200",
        memory_bytes=141 << 30,
        driver="580.65.06",
        compute_capability="9.0",
        compute_mode="exclusive_process",
    )


def test_a_gpu_that_is_cut_up_is_its_instances() -> None:
    found = Nvml(Driver([A, B], mig={A: [M, N]})).devices()
    assert [(d.uuid, d.index) for d in found] == [(M, 0), (N, 0), (B, 1)]


def test_a_gpu_in_mig_mode_without_instances_is_shown_as_it_is() -> None:
    assert [d.uuid for d in Nvml(Driver([A], mig={A: []})).devices()] == [A]


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ("", []),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("-1", []),
        ("0,-1,2", [A]),
        ("0,7,2", [A]),
        ("0,0", []),
        (f"{B},2", [B, C]),
        ("GPU-cccc", [C]),
        ("GPU-aaaa", []),
        ("0,GPU-aaaa,2", [A]),
        ("0,rubbish,1", [A]),
        ("NoDevFiles", []),
        ("٣", []),
    ],
)
def test_cuda_visible_devices(wanted: str, shown: list[str]) -> None:
    assert [d.uuid for d in visible(gpus(A, B, C), wanted)] == shown


def test_mig_instances_by_environment() -> None:
    nvml = Nvml(Driver([A, B], mig={A: [M, N]}))
    assert [d.uuid for d in visible(nvml.devices(), N)] == [N]
    assert [d.uuid for d in visible(nvml.devices(), "0")] == [M]


def test_the_survey_says_what_is_hidden() -> None:
    found = survey({"CUDA_VISIBLE_DEVICES": "1"}, Nvml(Driver([A, B])))
    assert [d.uuid for d in found.devices] == [B, "cpu"]
    assert "hides 1 of 2" in found.note
    assert survey({}, Nvml(Driver([A, B]))).note == ""


@pytest.mark.parametrize("fault", [pynvml.NVMLError_LibraryNotFound(), pynvml.NVMLError_DriverNotLoaded()])
def test_without_a_driver_there_is_the_cpu(fault: Exception) -> None:
    driver = Driver([A])
    driver.fault = fault
    found = survey({}, Nvml(driver))
    assert [d.uuid for d in found.devices] == ["cpu"]
    assert "no NVIDIA driver" in found.note
    assert not found.broken
    assert resolve("auto", found).kind == "cpu"
    with pytest.raises(NoDevice, match="no NVIDIA driver"):
        resolve("cuda", found)


def test_a_driver_that_appears_later_is_found() -> None:
    driver = Driver([A])
    driver.fault = pynvml.NVMLError_DriverNotLoaded()
    nvml = Nvml(driver)
    with pytest.raises(NoNvml):
        nvml.devices()
    driver.fault = None
    assert len(nvml.devices()) == 1


def test_a_failing_driver_is_not_taken_for_none() -> None:
    driver = Driver([A])
    driver.fault = pynvml.NVMLError_GpuIsLost()
    found = survey({}, Nvml(driver))
    assert found.broken
    with pytest.raises(NoDevice, match="driver failed"):
        resolve("auto", found)
    assert resolve("cpu", found).kind == "cpu"


def test_a_hanging_driver_is_given_up() -> None:
    driver = Driver([A])
    driver.hang = threading.Event()
    nvml = Nvml(driver, answer_s=0.1)
    try:
        for _ in range(2):
            with pytest.raises(DeviceBroken, match="did not answer"):
                nvml.devices()
        assert driver.started == 1, "it is not asked again"
    finally:
        driver.hang.set()


def test_resolve_by_word_index_and_uuid() -> None:
    found = Survey([*gpus(A, B, C), cpu_device()])
    assert resolve("cpu", found).uuid == "cpu"
    assert resolve("auto", found).uuid == resolve("CUDA", found).uuid == resolve("", found).uuid == A
    assert resolve("1", found).uuid == resolve("cuda:1", found).uuid == B
    assert resolve(C, found).uuid == resolve("gpu-cccc", found).uuid == C


def test_auto_takes_the_shortest_queue() -> None:
    found = Survey([*gpus(A, B, C), cpu_device()])
    assert resolve("auto", found, {A: 2, B: 1, C: 1}.__getitem__).uuid == B


@pytest.mark.parametrize(
    ("spec", "says"),
    [("7", "no device '7'.*0: NVIDIA H200 GPU-aaaa0000-1"), ("GPU-aaaa", "fits 2 devices")],
)
def test_what_does_not_resolve_names_what_is_there(spec: str, says: str) -> None:
    with pytest.raises(UnknownDevice, match=says) as caught:
        resolve(spec, Survey([*gpus(A, B), cpu_device()]))
    assert caught.value.exit_code == 2, "a wrong option, as any other name of no device"


def test_a_gpu_that_a_failing_driver_hides_is_no_wrong_request() -> None:
    with pytest.raises(NoDevice, match="no device '0'") as caught:
        resolve("0", Survey([cpu_device()], note="the driver fails", broken=True))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("spec", ["tpu", "cuda:x", "gpu"])
def test_what_names_no_device_is_a_wrong_request(spec: str) -> None:
    with pytest.raises(UnknownDevice, match=f"named '{spec}'.*cpu") as caught:
        resolve(spec, Survey([*gpus(A, B), cpu_device()]))
    assert caught.value.exit_code == 2


def test_an_index_means_the_machines_not_the_visible_ones() -> None:
    found = survey({"CUDA_VISIBLE_DEVICES": "1"}, Nvml(Driver([A, B])))
    assert resolve("1", found).uuid == B
    with pytest.raises(UnknownDevice, match="hides 1 of 2"):
        resolve("0", found)


def test_status_shows_load_queue_and_strangers(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, lock_dir=tmp_path / "locks")
    leases = FlockLeases(settings)
    driver = Driver([A, B])
    driver.running[A] = [(1, 5 << 30)]
    nvml = Nvml(driver)
    found = survey({}, nvml)
    with leases.acquire(found.devices[0], "exclusive", purpose="timing"), Registry(settings).register():
        status = gpu_status(settings, leases, found=found, nvml=nvml, quarantined={B: "lost memory"})
    busy, ill, cpu = status.devices
    assert [h.purpose for h in busy.holders] == ["timing"]
    assert busy.foreign[0].startswith("1 ")
    assert busy.foreign[0].endswith(f" {5 << 30}")
    assert (busy.memory_used_bytes, busy.utilisation) == (3 << 30, 0.4)
    assert (ill.quarantined, ill.holders) == ("lost memory", [])
    assert cpu.device.kind == "cpu"
    assert cpu.utilisation is None


def test_status_survives_a_gpu_that_was_lost(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, lock_dir=tmp_path / "locks")
    driver = Driver([A])
    nvml = Nvml(driver)
    found = survey({}, nvml)
    driver.uuids = []
    status = gpu_status(settings, FlockLeases(settings), found=found, nvml=nvml)
    assert "driver failed" in status.devices[0].quarantined


def test_discovery_here_needs_neither_torch_nor_a_gpu() -> None:
    code = (
        "import sys; from fk_core.leases.devices import survey; d = survey().devices;"
        "assert d[-1].uuid == 'cpu' and d[-1].memory_bytes > 0 and d[-1].name; assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)
    assert survey().devices[-1] == cpu_device()


@pytest.mark.parametrize(
    ("mask", "throttled", "capped"),
    [
        (0x0, (), False),
        (0x1, (), False),
        (0x4, (), True),
        (0x8 | 0x40, ("hardware slowdown", "hardware thermal"), False),
        (0x20 | 0x80 | 0x4, ("software thermal", "power brake"), True),
    ],
)
def test_what_holds_the_clocks_down_is_named(mask: int, throttled: tuple[str, ...], capped: bool) -> None:
    driver = Driver(["GPU-a"])
    driver.reasons = mask
    found = Nvml(driver).clocks("GPU-a")
    assert (found.sm_mhz, found.memory_mhz) == (1980, 3201)
    assert (found.throttled, found.power_capped) == (throttled, capped)
