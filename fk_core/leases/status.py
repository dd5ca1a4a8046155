"""Devices, their queues, and who is on them: what ``gpu_status`` shows."""

from __future__ import annotations

from collections.abc import Mapping

from fk_core.errors import MachineError
from fk_core.leases.base import LeaseBackend
from fk_core.leases.devices import Survey, shared_nvml, survey
from fk_core.leases.foreign import Registry
from fk_core.leases.nvml import Nvml
from fk_core.records.device import Device, DeviceStatus, GpuStatus
from fk_core.settings import Settings


def gpu_status(
    settings: Settings,
    leases: LeaseBackend,
    *,
    found: Survey | None = None,
    quarantined: Mapping[str, str] | None = None,
    using: set[int] | None = None,
    nvml: Nvml | None = None,
) -> GpuStatus:
    """Every visible device with its queue.

    ``quarantined`` maps a UUID to the reason why it is not given out; ``using`` as in :meth:`Registry.foreign`.
    """
    nvml = shared_nvml() if nvml is None else nvml
    found = survey(nvml=nvml) if found is None else found
    registry = Registry(settings)
    reasons = quarantined or {}
    rows = [device_status(d, leases, registry, nvml, reasons.get(d.uuid, ""), using) for d in found.devices]
    return GpuStatus(devices=rows, lock_dir=str(settings.lock_dir), note=found.note)


def device_status(
    device: Device, leases: LeaseBackend, registry: Registry, nvml: Nvml, quarantined: str, using: set[int] | None
) -> DeviceStatus:
    queue = leases.queue(device.uuid)
    status = DeviceStatus(device=device, holders=queue.holders, waiting=queue.waiting, quarantined=quarantined)
    if device.kind == "cpu":
        return status
    try:
        load = nvml.load(device.uuid)
        foreign = [str(f) for f in registry.foreign(nvml, device.uuid, using)]
    except MachineError as e:
        return status.model_copy(update={"quarantined": quarantined or str(e)})
    seen = {"foreign": foreign, "memory_used_bytes": load.memory_used_bytes, "utilisation": load.utilisation}
    return status.model_copy(update=seen)
