"""NVIDIA's management library: what GPUs there are and who is on them, without a CUDA context.

NVML knows every GPU of the machine and ignores ``CUDA_VISIBLE_DEVICES``. After some faults of a GPU its calls never
return, so each question runs in a thread of its own and is given up after a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import pynvml

from fk_core.errors import DeviceBroken
from fk_core.records.device import Device

T = TypeVar("T")
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


class NoNvml(Exception):
    """There is no NVIDIA driver, or it does not answer this process; the text says which."""


@dataclass(frozen=True)
class Load:
    """How busy a GPU is."""

    memory_used_bytes: int | None
    utilisation: float | None
    """Share of the last sampling period in which a kernel ran, 0 to 1; None where the driver does not say (MIG)."""


THROTTLES = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
"""Clock event reasons that spoil a measurement (nvmlClocksEventReasons); a software power cap (0x4) only marks it."""
POWER_CAP = 0x4


@dataclass(frozen=True)
class Clocks:
    """Clocks now, and what holds them down."""

    sm_mhz: int | None
    memory_mhz: int | None
    throttled: tuple[str, ...]
    power_capped: bool


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    memory_bytes: int | None
    """None where the driver does not say."""


class Nvml:
    """Asks the library. Initialised at the first question and never shut down: others in this process may use it."""

    def __init__(self, api: ModuleType | Any = pynvml, *, answer_s: float = 20.0) -> None:
        self._api = api
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._ready = False
        self._hung = ""

    def devices(self) -> list[Device]:
        """All GPUs in NVML's (PCI bus) order; a GPU that is cut into MIG instances is replaced by them.

        Raises:
            NoNvml: no driver.
            DeviceBroken: the driver is there but fails or hangs.
        """
        return self._ask("listing the GPUs", self._devices)

    def processes(self, uuid: str) -> list[GpuProcess]:
        """Processes with a compute context on the device."""
        return self._ask(f"listing the processes on {uuid}", lambda: self._processes(uuid))

    def load(self, uuid: str) -> Load:
        return self._ask(f"reading the load of {uuid}", lambda: self._load(uuid))

    def clocks(self, uuid: str) -> Clocks:
        return self._ask(f"reading the clocks of {uuid}", lambda: self._clocks(uuid))

    def _devices(self) -> list[Device]:
        api = self._api
        driver = _text(api.nvmlSystemGetDriverVersion())
        found: list[Device] = []
        for index in range(api.nvmlDeviceGetCount()):
            gpu = api.nvmlDeviceGetHandleByIndex(index)
            about = self._describe(gpu, gpu, index, driver)
            slices = [self._describe(gpu, part, index, driver) for part in self._mig_instances(gpu)]
            found.extend(slices or [about])
        return found

    def _describe(self, gpu: Any, part: Any, index: int, driver: str) -> Device:
        """``part`` is the GPU itself or a MIG instance of it; some facts are known of the whole GPU only."""
        api = self._api
        major, minor = api.nvmlDeviceGetCudaComputeCapability(gpu)
        mode = self._optional(lambda: api.nvmlDeviceGetComputeMode(gpu))
        return Device(
            kind="cuda",
            uuid=_text(api.nvmlDeviceGetUUID(part)),
            index=index,
            name=_text(api.nvmlDeviceGetName(part)),
            memory_bytes=int(api.nvmlDeviceGetMemoryInfo(part).total),
            driver=driver,
            compute_capability=f"{major}.{minor}",
            compute_mode="" if mode is None else _COMPUTE_MODES.get(mode, str(mode)),
        )

    def _mig_instances(self, gpu: Any) -> list[Any]:
        api = self._api
        mode = self._optional(lambda: api.nvmlDeviceGetMigMode(gpu))
        if mode is None or mode[0] != api.NVML_DEVICE_MIG_ENABLE:
            return []
        slots = range(api.nvmlDeviceGetMaxMigDeviceCount(gpu))
        parts = [self._optional(partial(api.nvmlDeviceGetMigDeviceHandleByIndex, gpu, i)) for i in slots]
        return [part for part in parts if part is not None]

    def _processes(self, uuid: str) -> list[GpuProcess]:
        rows = self._api.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        return [GpuProcess(int(r.pid), None if r.usedGpuMemory is None else int(r.usedGpuMemory)) for r in rows]

    def _load(self, uuid: str) -> Load:
        handle = self._handle(uuid)
        memory = self._optional(lambda: self._api.nvmlDeviceGetMemoryInfo(handle))
        rates = self._optional(lambda: self._api.nvmlDeviceGetUtilizationRates(handle))
        return Load(None if memory is None else int(memory.used), None if rates is None else rates.gpu / 100)

    def _clocks(self, uuid: str) -> Clocks:
        api, handle = self._api, self._handle(uuid)
        sm = self._optional(lambda: api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM))
        memory = self._optional(lambda: api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_MEM))
        mask = self._optional(lambda: api.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
        return Clocks(sm, memory, tuple(said for bit, said in THROTTLES.items() if mask & bit), bool(mask & POWER_CAP))

    def _handle(self, uuid: str) -> Any:
        return self._api.nvmlDeviceGetHandleByUUID(uuid)

    def _optional(self, question: Callable[[], T]) -> T | None:
        """For facts that not every GPU has."""
        try:
            return question()
        except (self._api.NVMLError_NotSupported, self._api.NVMLError_NotFound, self._api.NVMLError_InvalidArgument):
            return None

    def _ask(self, doing: str, question: Callable[[], T]) -> T:
        if self._hung:
            raise DeviceBroken(self._hung, hint="Restart the driver or the machine, then this server")
        answers: list[T] = []
        faults: list[BaseException] = []

        def run() -> None:
            try:
                with self._lock:
                    if not self._ready:
                        self._initialise()
                    answers.append(question())
            except BaseException as e:  # noqa: BLE001 - carried to the asking thread, which raises it
                faults.append(e)

        thread = threading.Thread(target=run, name="nvml", daemon=True)
        thread.start()
        thread.join(self._answer_s)
        if thread.is_alive():
            self._hung = f"the GPU driver did not answer within {self._answer_s:g} s ({doing})"
            raise DeviceBroken(self._hung, hint="nvidia-smi is likely to hang too; see dmesg for Xid errors")
        if faults:
            if isinstance(faults[0], self._api.NVMLError):
                raise DeviceBroken(
                    f"the GPU driver failed when {doing}: {faults[0]}", hint="Run nvidia-smi; see dmesg for Xid errors"
                ) from faults[0]
            raise faults[0]
        return answers[0]

    def _initialise(self) -> None:
        api = self._api
        try:
            api.nvmlInit()
        except (api.NVMLError_LibraryNotFound, api.NVMLError_DriverNotLoaded) as e:
            raise NoNvml(f"no NVIDIA driver ({e})") from e
        except api.NVMLError_NoPermission as e:
            raise NoNvml(f"the NVIDIA driver refuses this user ({e})") from e
        self._ready = True


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
