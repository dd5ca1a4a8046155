"""Second thoughts on a failed candidate: was it really its own doing?"""

from __future__ import annotations

import shutil
from pathlib import Path

from fk_core.child import processes
from fk_core.errors import HarnessError, MachineError
from fk_core.fault import CandidateFault
from fk_core.leases.nvml import Nvml
from fk_core.records.device import Device
from fk_core.records.report import Outcome
from fk_core.sandbox import trees
from fk_core.sandbox.launch import Child

FULL_BYTES = 8 << 20
"""A disk with less room than this is full: compilers fail on it."""
_OWN_BYTES = 256 << 20
_HOG_SHARE = 0.5
"""Of a GPU's memory: a candidate that holds more left none to the judge, who needs far less."""
_MEMORY = ("CUDA out of memory", "out of memory:", "CUDA error", "CUBLAS_STATUS_ALLOC_FAILED", "cudaError")


class CandidateLost(HarnessError):
    """The candidate's process was ended by the harness's own machinery while nobody wanted that."""

    code = "candidate_lost"


class TryAgain(Exception):
    """Not yet a verdict: what was seen may have come from outside. ``alone`` asks for the device for oneself."""

    def __init__(self, why: str, fault: CandidateFault, *, alone: bool = False) -> None:
        super().__init__(why)
        self.why, self.fault, self.alone = why, fault, alone


def reconsider(
    fault: CandidateFault, child: Child, scratch: Path, home: Path, *, last: bool, shared: bool
) -> Exception:
    """What to raise in the end for a candidate that failed.

    ``last``: it was tried before, so that what may have come from outside is now taken for its own. ``shared``: others
    used the same GPU meanwhile.
    """
    if fault.outcome not in (Outcome.CRASHED, Outcome.OVER_LIMIT, Outcome.BUILD_FAILED):
        return fault
    if not scratch.is_dir():
        return HarnessError(
            f"the scratch directory {scratch} vanished while the candidate used it",
            hint="Something cleans FK_HOME while it is in use; exempt it, then submit the same source again",
        )
    if _disk_full(home) and trees.size(scratch) < _OWN_BYTES:
        return HarnessError(
            f"the disk of FK_HOME ({home}) is full, and not by the candidate's doing",
            hint="Make room there, then submit the same source again",
        )
    if fault.outcome is Outcome.CRASHED and not child.alive() and child.over_limit is None:
        if child.exit_status in ("unknown", "killed by the harness"):
            # The keeper ends a role by itself only over a limit, which it reports: so the keeper or the zygote died.
            return CandidateLost(
                "the candidate's process was lost: its keeper or the zygote ended",
                hint="Submit the same source again; if this repeats, look for what kills processes here",
            )
        if child.exit_status.startswith("signal 9 ") and not last:
            # From outside, say by the kernel for want of memory, or by itself: then it happens again.
            return TryAgain("the candidate was killed by SIGKILL, perhaps from outside", fault)
    if shared and not last and any(word in fault.reason for word in _MEMORY):
        return TryAgain("the GPU failed the candidate while others used it", fault, alone=True)
    return fault


def filled(child: Child, *, device: Device, nvml: Nvml) -> CandidateFault | None:
    """The candidate's fault where the judge found no memory on the device, if it is the candidate that holds it."""
    try:
        holders = nvml.processes(device.uuid)
    except MachineError:
        return None
    ours = {child.pid, *processes.descendants(child.pid)}
    held = sum(p.memory_bytes or 0 for p in holders if p.pid in ours)
    if not device.memory_bytes or held <= _HOG_SHARE * device.memory_bytes:
        return None
    return CandidateFault(
        Outcome.OVER_LIMIT,
        f"out of memory: the candidate holds {held / 2**30:.1f} of the {device.memory_bytes / 2**30:.1f} GiB of the "
        "GPU, so that none was left for what its calls are judged with",
    )


def _disk_full(home: Path) -> bool:
    try:
        return shutil.disk_usage(home).free < FULL_BYTES
    except OSError:
        return False
