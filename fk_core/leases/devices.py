"""Which devices this process may use, and which one a request means.

``CUDA_VISIBLE_DEVICES`` is honoured as CUDA does, with numbers in PCI bus order (as ``nvidia-smi`` and ``fk gpus``
print them), GPU UUIDs, MIG UUIDs, and UUID prefixes that fit one GPU only; the first entry that fits none hides all
that follow. The CPU is always there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fk_core.errors import DeviceBroken, NoDevice, UnknownDevice
from fk_core.leases.nvml import NoNvml, Nvml
from fk_core.records.device import Device


@cache
def shared_nvml() -> Nvml:
    """The one handle of this process."""
    return Nvml()


@dataclass(frozen=True)
class Survey:
    """What was found, and why there is nothing more."""

    devices: list[Device]
    note: str = ""
    """Why there is no GPU, or why some are left out."""
    broken: bool = False
    """Whether the driver itself fails, rather than being absent."""

    @property
    def gpus(self) -> list[Device]:
        return [d for d in self.devices if d.kind == "cuda"]


def survey(environ: Mapping[str, str] | None = None, nvml: Nvml | None = None) -> Survey:
    """All devices that this process may use, GPUs first, and a note on what is missing."""
    env = os.environ if environ is None else environ
    nvml = shared_nvml() if nvml is None else nvml
    cpu = cpu_device()
    try:
        all_gpus = nvml.devices()
    except NoNvml as e:
        return Survey([cpu], note=str(e))
    except DeviceBroken as e:
        return Survey([cpu], note=str(e), broken=True)
    if not all_gpus:
        return Survey([cpu], note="the NVIDIA driver knows no GPU")
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return Survey([*all_gpus, cpu])
    shown = visible(all_gpus, wanted)
    hidden = len(all_gpus) - len(shown)
    note = f"CUDA_VISIBLE_DEVICES={wanted!r} hides {hidden} of {len(all_gpus)} GPUs" if hidden else ""
    return Survey([*shown, cpu], note=note)


def visible(gpus: list[Device], wanted: str) -> list[Device]:
    """The GPUs that a value of ``CUDA_VISIBLE_DEVICES`` shows, in its order."""
    shown: list[Device] = []
    for entry in (part.strip() for part in wanted.split(",")):
        matches = _match(gpus, entry)
        if not matches or any(m in shown for m in matches):
            # CUDA stops at an entry that names nothing, and shows none at all when one is named twice.
            return [] if matches else shown
        shown.extend(matches)
    return shown


def _match(gpus: list[Device], entry: str) -> list[Device]:
    if entry.isascii() and entry.isdigit():
        # Of a GPU that is cut up, CUDA shows the first instance only.
        return [g for g in gpus if g.index == int(entry)][:1]
    if not entry.startswith(("GPU-", "MIG-")):
        return []
    matches = [g for g in gpus if g.uuid.lower().startswith(entry.lower())]
    return matches if len(matches) == 1 else []


def resolve(
    spec: str,
    found: Survey | None = None,
    queue_length: Callable[[str], int] | None = None,
) -> Device:
    """The device that ``auto``, ``cpu``, ``cuda``, a GPU index or a GPU UUID means.

    ``auto`` is a GPU if there is one, else the CPU. Among several GPUs the one with the shortest queue is taken, by
    ``queue_length`` of a UUID, and the first of these.

    Raises:
        UnknownDevice: it is the name of no device at all, or of none that is here; says what there is.
        NoDevice: any GPU was asked for and there is none. Also where GPUs are there but their driver fails, with
            ``auto``, too: then the CPU would hide a fault.
    """
    found = survey() if found is None else found
    wanted = spec.strip()
    word = wanted.lower()
    if word == "cpu":
        return next(d for d in found.devices if d.kind == "cpu")
    if word in ("", "auto", "cuda"):
        if found.gpus:
            return min(found.gpus, key=lambda g: queue_length(g.uuid) if queue_length else 0)
        if word != "cuda" and not found.broken:
            return next(d for d in found.devices if d.kind == "cpu")
        hint = "Run `fk doctor`; `fk validate` with `--device cpu` needs no GPU, and its times are indicative"
        raise NoDevice(f"a GPU was asked for (as {spec!r}) and there is none: {found.note}", hint=hint)
    number = word.removeprefix("cuda:")
    if number.isascii() and number.isdigit():
        matches = [g for g in found.gpus if g.index == int(number)]
    else:
        matches = (
            [g for g in found.gpus if g.uuid.lower().startswith(word)] if word.startswith(("gpu-", "mig-")) else []
        )
    if len(matches) == 1:
        return matches[0]
    there = ", ".join(_name(d) for d in found.devices)
    hint = "Use auto, cpu, cuda, an index or a whole UUID"
    if not (number.isascii() and number.isdigit()) and not word.startswith(("gpu-", "mig-")):
        raise UnknownDevice(f"no device is named {spec!r}; there is {there}", hint=hint)
    problem = f"device {spec!r} fits {len(matches)} devices" if matches else f"no device {spec!r}"
    note = f" ({found.note})" if found.note else ""
    # A driver that fails is the machine's fault; else what was asked for is none of what is here.
    raise (NoDevice if found.broken else UnknownDevice)(f"{problem}; there is {there}{note}", hint=hint)


def _name(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"{device.index}: {device.name} {device.uuid}"


@cache
def cpu_device() -> Device:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Device(kind="cpu", uuid="cpu", name=_cpu_name(), memory_bytes=pages * page_bytes)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware"))]
    return named[0] if named else os.uname().machine
