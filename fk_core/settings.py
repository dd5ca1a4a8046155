"""Where things live, what a candidate may use, and the constants of the decision table; read once.

``FK_HOME``      data: journal, trusted caches, scratch (default: the user's data directory)
``FK_LOCK_DIR``  leases, one directory for the whole host (default: ``/var/tmp/fk-locks``, mode 1777)
``FK_SANDBOX``   force a level: ``namespaces``, ``landlock+seccomp`` or ``process`` (default: the best there is)
``FK_DEVICE``    ``auto`` (default), ``cpu``, ``cuda`` or a GPU UUID
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from fk_core.errors import RequestError

SANDBOX_LEVELS = ("namespaces", "landlock+seccomp", "process")
"""Best first."""


@dataclass(frozen=True)
class Timing:
    """Constants of the decision table; the evidence for each is in docs/measurements.md."""

    changed: float = 0.01
    """A change is called only above this, or above the machine's floor if that is higher."""
    resolution_us: float = 0.02
    """Of a call: a shorter one is called changed only by more than this. A kernel timed against itself is off by up to
    16 ns where calls take 1 us, whatever share of it that is."""
    sure: float = 1.5
    """A change is called only where it is so many times the half-width of its 95% interval: about 99.7%. A report has a
    dozen cases and an agent asks for many reports, and one false word in twenty is too many."""
    same: float = 0.01
    win: float = 0.005
    slow_case: float = 0.97
    target_half_width: float = 0.005
    budget_s: float = 0.15
    budget_max_s: float = 0.30
    min_rounds: int = 8
    step_rounds: int = 4
    calls: int = 80
    """Calls of a batch, at most: what a batch is off by as a whole weighs the less, the more calls it has."""
    layouts: int = 12
    """Captures a case and side, at most, but of those with the smallest inputs; each round uses the next."""
    least_layouts: int = 8
    short_layouts: int = 16
    """Captures of a case whose inputs take no more than ``measure._SHORT_BYTES``: its calls are the shortest, and where
    things lie moves them most."""
    gate_layouts: int = 4
    """How many captures of the baseline's are made without calls, too, to time the gates."""
    captured_calls: int = 640
    """Of all captures of a case and side together, unless that makes fewer than the least layouts; not where inputs are
    the smallest."""
    plain_layouts: int = 3
    """How many of them are captured without gates, too."""
    trim: float = 0.2
    witness: float = 0.01
    default_floor: float = 0.003
    cpu_floor: float = 0.2
    """The least that a CPU's times are taken to be off by, whatever a measurement of a quiet moment says."""
    crowd_share: float = 0.25
    crowd_spare: float = 0.8
    """Others crowd a CPU's cores where they keep more than this share of them busy and leave fewer than so many: one
    side works at a time, and then waits for a core now and then. One busy process on two cores is none."""
    crowd_floor: float = 0.7
    """What a CPU's times are taken to be off by then, as a log ratio: a kernel timed against itself read 0.75 to 1.07
    beside two busy processes, and one of 20 readings is not the worst there is."""
    batch_us: float = 120.0

    def usual_floor(self, kind: str) -> float:
        """The most that the machine's own error is where nothing is wrong, on a ``cpu`` or a GPU."""
        return self.cpu_floor if kind == "cpu" else self.changed


@dataclass(frozen=True)
class Limits:
    """What one candidate may use."""

    build_s: float = 300.0
    call_s: float = 60.0
    first_call_s: float = 120.0
    """The first few calls may compile."""
    total_s: float = 900.0
    memory_bytes: int = 16 << 30
    cpu_s: float = 1800.0
    processes: int = 256
    open_files: int = 4096
    file_bytes: int = 2 << 30
    log_bytes: int = 256 << 10
    """Of its output, that are kept."""
    source_bytes: int = 1 << 20

    @property
    def output_bytes(self) -> int:
        """Of its output, until it is ended: reading on would cost the harness its time."""
        return 64 * self.log_bytes

    def amount(self, name: str) -> str:
        """How much a candidate may use, in words, of what ``Child.over_limit`` names; empty for another name."""
        return {
            "memory": in_bytes(self.memory_bytes),
            "cpu time": f"{self.cpu_s:g} s",
            "processes": str(self.processes),
            "file size": in_bytes(self.file_bytes),
            "output": in_bytes(self.output_bytes),
        }.get(name, "")


def in_bytes(count: int) -> str:
    """A number of bytes in the unit that suits it, such as ``16 GiB``."""
    power = min(3, max(0, count.bit_length() - 1) // 10)
    return f"{count / (1 << 10 * power):.4g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


@dataclass(frozen=True)
class Leasing:
    queue_s: float = 600.0
    hold_s: float = 900.0


@dataclass(frozen=True)
class Settings:
    home: Path
    lock_dir: Path
    sandbox: str = ""
    device: str = "auto"
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    leasing: Leasing = field(default_factory=Leasing)

    @property
    def journal_dir(self) -> Path:
        return self.home / "journal"

    @property
    def scratch_dir(self) -> Path:
        return self.home / "scratch"

    @property
    def cache_dir(self) -> Path:
        """Trusted caches: written by trusted processes only."""
        return self.home / "cache"


def load(environ: dict[str, str] | None = None) -> Settings:
    """What the environment says. Raises ``RequestError`` where it says what can't be."""
    env = dict(os.environ) if environ is None else environ
    home = _absolute("FK_HOME", env.get("FK_HOME") or platformdirs.user_data_dir("fk-server"))
    sandbox = env.get("FK_SANDBOX", "")
    if sandbox and sandbox not in SANDBOX_LEVELS:
        raise RequestError(
            f"FK_SANDBOX={sandbox} is no sandbox level",
            hint=f"Unset it for the best there is, or use one of {', '.join(SANDBOX_LEVELS)}",
        )
    lock_dir = _absolute("FK_LOCK_DIR", env.get("FK_LOCK_DIR") or "/var/tmp/fk-locks")
    return Settings(home=home, lock_dir=lock_dir, sandbox=sandbox, device=env.get("FK_DEVICE", "auto"))


def _absolute(name: str, value: str) -> Path:
    try:
        return Path(value).expanduser().absolute()
    except OSError as error:
        raise RequestError(
            f"{name}={value} is relative to a working directory that is gone", hint="Give an absolute path"
        ) from error
    except RuntimeError as error:
        raise RequestError(f"{name}={value}: {error}", hint="Give an absolute path") from error
