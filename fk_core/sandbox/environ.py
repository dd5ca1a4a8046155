"""The environment of children: an allow-list of what the machine needs, and all that is written pointed elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fk_core.settings import Settings

_PASSED = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "TORCH_CUDA_ARCH_LIST",
    "TRITON_PTXAS_PATH",
    "CC",
    "CXX",
    "CUDAHOSTCXX",
)

RUN_MARKER = "FK_RUN"


def path() -> str:
    """The interpreter's own programs (ninja among them) first, then what the harness has, absolute entries only."""
    entries = [
        os.path.dirname(sys.executable),
        *os.environ.get("PATH", "").split(":"),
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
    ]
    return ":".join(dict.fromkeys(entry for entry in entries if entry.startswith("/")))


def base(*, marker: str, interpret: bool) -> dict[str, str]:
    """What every child gets."""
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    env |= {
        "PATH": path(),
        "OMP_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Its cache entries name binaries by full path, so that they would serve in one place only.
        "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MAX_JOBS": os.environ.get("MAX_JOBS", str(max(1, min(8, os.cpu_count() or 1)))),
        "USER": "fk",
        "LOGNAME": "fk",
        RUN_MARKER: marker,
    }
    if interpret:
        env["TRITON_INTERPRET"] = "1"
    return env


def writing_to(home: Path, *, tmp: Path | None) -> dict[str, str]:
    """Home, temporary files and compiler caches under one directory. ``tmp`` None: temporary files go where they go."""
    env = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "TRITON_CACHE_DIR": str(home / "triton"),
        "TRITON_HOME": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(home / "extensions"),
        "CUDA_CACHE_PATH": str(home / "cuda"),
    }
    if tmp is not None:
        env["TMPDIR"] = str(tmp)
    return env


def of_trusted(settings: Settings, *, marker: str, interpret: bool) -> dict[str, str]:
    """Of the zygote and the judge: they write to the trusted caches."""
    return base(marker=marker, interpret=interpret) | writing_to(settings.cache_dir, tmp=None)


def of_confined(scratch: Path, *, marker: str, interpret: bool) -> dict[str, str]:
    """Of a candidate and its twin: they write to their scratch directory only."""
    return base(marker=marker, interpret=interpret) | writing_to(scratch, tmp=scratch / "tmp")
