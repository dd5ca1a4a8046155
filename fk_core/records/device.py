"""Devices, leases and what a machine can do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fk_core.records.base import Number, Record


class Device(Record):
    """One thing that can be leased."""

    kind: Literal["cpu", "cuda"]
    uuid: str
    """GPU UUID, or ``cpu``."""
    index: int | None = None
    name: str = ""
    memory_bytes: int = 0
    driver: str = ""
    compute_capability: str = ""
    compute_mode: str = ""


class Holder(Record):
    """A process that holds or waits for a lease."""

    pid: int
    mode: Literal["shared", "exclusive"]
    purpose: str = ""
    since_s: float = 0.0
    """Seconds since it was granted, or since it began to wait."""


class DeviceStatus(Record):
    device: Device
    holders: list[Holder] = Field(default_factory=list)
    waiting: list[Holder] = Field(default_factory=list)
    foreign: list[str] = Field(default_factory=list)
    """Compute processes on the device that hold no lease: ``pid name bytes``."""
    memory_used_bytes: int | None = None
    utilisation: Number = None
    quarantined: str = ""
    """Why the device is not given out, if it is not."""


class GpuStatus(Record):
    devices: list[DeviceStatus]
    lock_dir: str
    note: str = ""


class Check(Record):
    """One line of ``fk doctor``."""

    name: str
    state: Literal["ok", "warn", "missing", "broken"]
    found: str
    todo: str = ""


class DoctorReport(Record):
    checks: list[Check]
    sandbox: str
    floor: Number = None
    """A/A error of the machine, as a fraction."""
    floor_cases: dict[str, float] = Field(default_factory=dict)
    planted: Number = None
    """The slow-down that was planted, as a fraction."""
    planted_seen: Number = None
    """What the timing said of it."""
    planted_verdict: str = ""
