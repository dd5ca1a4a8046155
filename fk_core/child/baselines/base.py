"""Baseline providers: where the kernel to beat comes from.

One file here is one provider, found by its file name. Importing a provider's file imports neither torch nor the
library: the parent side asks what is installed, and only the judge builds.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fk_core.versions import NotInstalled, version

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class UnknownProvider(LookupError):
    """A task names a baseline that has no file."""


class BaselineUnusable(Exception):
    """The library is installed, but can't do what was asked; the message says what it lacks."""


class Provider(ABC):
    name: ClassVar[str]
    """The file name, and the word in a task's ``baselines``."""
    kernels: ClassVar[Mapping[str, str]]
    """Task -> what it runs for it, in words."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Import names that a candidate may not use unless the caller allows it; empty for torch itself."""
    tunes: ClassVar[bool] = False
    """Whether it times configurations and keeps the fastest on disk: until then two processes may choose otherwise."""
    distributions: ClassVar[tuple[str, ...]]
    """Names under which the library may be installed, the usual one first."""

    def what(self, task: str) -> str:
        """What it runs for a task, in words; empty where it has nothing for it."""
        return self.kernels.get(task, "")

    @abstractmethod
    def supports(self, task: str, entry: str, form: str, dtype: str, device: str) -> bool:
        """Whether it has a kernel for this; ``dtype`` is a torch name such as ``bfloat16``, ``device`` cpu or cuda."""

    @abstractmethod
    def build(
        self,
        task: str,
        entry: str,
        init: Mapping[str, Any],
        state: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Callable[..., Any]:
        """A forward function with the signature of the candidate's class.

        ``init`` is complete (defaults filled in), ``state`` is on the device and in the dtype. Raises
        ``BaselineUnusable``.
        """

    def installed(self) -> str | None:
        """Version of the installed library, without importing it."""
        for distribution in self.distributions:
            try:
                return version(distribution)
            except NotInstalled:
                continue
        return None


def providers() -> list[str]:
    """Names of all providers: one a file."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__init__", "base"))


def provider(name: str) -> Provider:
    """The provider of that name. Raises ``UnknownProvider``."""
    if name not in providers():
        raise UnknownProvider(f"no baseline provider {name!r}; there are {', '.join(providers())}")
    module = importlib.import_module(f"fk_core.child.baselines.{name}")
    found: Provider = module.PROVIDER
    return found


def policy_libraries() -> dict[str, str]:
    """Import name of each production kernel library -> the provider that it stands behind."""
    return {library: name for name in providers() for library in provider(name).libraries}


def production(task: str, entry: str, form: str, dtype: str, device: str, order: list[str]) -> Provider | None:
    """The first installed provider of ``order`` that has this kernel; on a CPU that is torch eager."""
    names = ["torch_eager"] if device == "cpu" else order
    for name in names:
        candidate = provider(name)
        if candidate.installed() and candidate.supports(task, entry, form, dtype, device):
            return candidate
    return None
