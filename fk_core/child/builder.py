"""Compiles a candidate's Triton kernels ahead of time, before a device is needed and several at once.

The candidate's own code runs, confined like the candidate and in its scratch directory, on CPU tensors that nobody has
written to, with a Triton driver that compiles and launches nothing. What it leaves is Triton's cache, which makes the
candidate's first calls fast, and a claim on the signatures of its kernels (``fk_core.launcher_stock``). Nothing else
of it is used, so a failure here only costs time.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from fk_core.child import loading
from fk_core.child.calls import DTYPES
from fk_core.child.triton_version import compiles_launchers
from fk_core.child.wire import Channel, Closed

_SHARED_BYTES = {90: 232448, 100: 232448}
_OLDER_SHARED_BYTES = 101376
_MOST_TOLD = 32
"""Signatures; the harness looks at no more."""
_MOST_FAILED = 4
"""Inputs of a call that may fail: after so many, others are likely to, and each costs as long as a kernel takes."""


class DryDriver:
    """Triton's driver interface: a target to compile for, launches that do nothing."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.signatures: list[list[str]] = []
        """Types of each kernel's arguments in order, of kernels whose types are all plain names; each once."""
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {
                "max_shared_mem": _SHARED_BYTES.get(capability, _OLDER_SHARED_BYTES),
                "multiprocessor_count": 132,
                "warpSize": 32,
                "max_num_regs": 65536,
                "sm_clock_rate": 1980000,
                "mem_clock_rate": 3201000,
                "mem_bus_width": 6144,
            },
            load_binary=lambda *binary: (0, 0, 32, 0, 1024),
            set_printf_fifo_size=lambda size: None,
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Gives a launcher that rests. Where this Triton compiles one for a signature, the cache has it afterwards."""
        signature = list(source.signature.values())
        if signature not in self.signatures and all(isinstance(name, str) for name in signature):
            self.signatures.append(signature)
        if compiles_launchers(triton.__version__):
            from triton.backends.nvidia.driver import CudaLauncher

            CudaLauncher(source, metadata)
        return lambda *arguments, **options: None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self.capability, 10)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Runs each configuration once, so that an autotuner compiles them all."""

        def bench(call: Any, quantiles: Any = None, **options: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, cache: Any) -> None:
        pass

    @staticmethod
    def is_active() -> bool:
        return True


def main(channel: Channel, config: dict[str, Any]) -> None:
    """``config``: ``path`` of the candidate, ``capability``.

    Answers each request for ``calls`` with the numbers of the inputs that were ``done`` of each, why one ``failed``,
    and all ``signatures`` met.
    """
    torch.set_num_threads(1)
    driver = DryDriver(int(config["capability"]))
    triton.runtime.driver.set_active(driver)
    loaded: list[Any] = []
    while True:
        try:
            frame = channel.receive()
        except Closed:
            os._exit(0)
        done: list[list[int]] = [[] for _ in frame.body["calls"]]
        failed: list[str] = []
        try:
            if not loaded:
                loaded.append(loading.import_file(config["path"]))
            for call, well in zip(frame.body["calls"], done, strict=True):
                _make_one(loaded[0], call, well, failed)
        except BaseException as error:  # noqa: BLE001
            failed.append(_told(error))
        channel.reply(
            frame, {"done": done, "failed": "; ".join(failed)[:300], "signatures": driver.signatures[:_MOST_TOLD]}
        )


def _construct(module: Any, call: dict[str, Any]) -> Any:
    dtype = DTYPES[call["dtype"]]
    state = {name: torch.zeros(shape, dtype=dtype) for name, shape in call["state"].items()}
    cls = loading.find_class(module, call["entry"])
    return loading.construct(cls, call["init"], state, dtype, torch.device("cpu"))


def _make_one(module: Any, call: dict[str, Any], done: list[int], failed: list[str]) -> None:
    """Make a call on each of its inputs. One that raises leaves the others: the candidate itself will show it, with the
    right blame.
    """
    before = len(failed)
    try:
        forward, dtype = _construct(module, call), DTYPES[call["dtype"]]
    except Exception as error:  # noqa: BLE001
        failed.append(_told(error))
        return
    for number, shapes in enumerate(call["inputs"]):
        try:
            with torch.no_grad():
                forward(*[torch.empty(shape, dtype=dtype) for shape in shapes])
            done.append(number)
        except Exception as error:  # noqa: BLE001
            failed.append(_told(error))
            if len(failed) - before >= _MOST_FAILED:
                return


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
