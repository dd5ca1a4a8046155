"""Memory and processes on the GPU, as its driver tells them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fk_core.errors import FkError
from fk_core.leases.devices import shared_nvml
from fk_core.leases.nvml import NoNvml
from fk_core.records.device import Device

SLACK_MIB = 1024
"""What a judge may keep of a job; the harness's own limit."""


@dataclass(frozen=True)
class Seen:
    """None where there is no GPU or the driver does not say."""

    used_mib: int | None = None
    processes: int | None = None

    def as_dict(self) -> dict[str, int | None]:
        return {"used_mib": self.used_mib, "processes": self.processes}


def look(device: Device) -> Seen:
    if device.kind == "cpu":
        return Seen()
    try:
        nvml = shared_nvml()
        used = nvml.load(device.uuid).memory_used_bytes
        return Seen(None if used is None else used >> 20, len(nvml.processes(device.uuid)))
    except (FkError, NoNvml):
        return Seen()


def settled(device: Device, before: Seen, processes: int | None = None, timeout_s: float = 5.0) -> tuple[bool, Seen]:
    """Whether memory came back to what it was, and no more than so many processes are on the device."""
    until = time.monotonic() + timeout_s
    while True:
        seen = look(device)
        grown = 0 if None in (seen.used_mib, before.used_mib) else (seen.used_mib or 0) - (before.used_mib or 0)
        crowd = processes is not None and seen.processes is not None and seen.processes > processes
        if (grown <= SLACK_MIB and not crowd) or time.monotonic() > until:
            return grown <= SLACK_MIB and not crowd, seen
        time.sleep(0.1)
