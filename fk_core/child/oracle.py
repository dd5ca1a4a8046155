"""The fp64 reference of a task: its file is imported here, in the judge, and nowhere else."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fk_core.child.calls import Call

Reference = tuple[Tensor, Tensor | None]


class OracleError(Exception):
    """The task file is not the one that was announced, or its oracle answered something that is no reference."""


class Oracle:
    """``oracle`` and ``make_inputs`` of one task file."""

    def __init__(self, path: str, sha256: str = "") -> None:
        source = Path(path).read_bytes()
        found = hashlib.sha256(source).hexdigest()
        if sha256 and found != sha256:
            raise OracleError(f"task file {path} has sha256 {found}, not the announced {sha256}")
        self.path, self.sha256 = path, found
        # The bytes that were hashed are the bytes that run: no second read, no bytecode cache.
        module = ModuleType(f"fk_task_{found[:16]}")
        module.__file__ = path
        sys.modules[module.__name__] = module
        exec(compile(source, path, "exec"), module.__dict__)
        self._oracle = self._function(module, "oracle")
        self._make_inputs = self._function(module, "make_inputs")

    def make_inputs(self, call: Call, draw: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Inputs of one call, in the order of its arguments; ``draw`` gives a tensor of the call's distribution."""
        inputs = self._make_inputs(call, draw)
        if set(inputs) != set(call.arguments):
            raise OracleError(f"make_inputs of {self.path} gave {sorted(inputs)}, the call passes {call.arguments}")
        for name in call.arguments:
            if tuple(inputs[name].shape) != call.shapes[name]:
                raise OracleError(
                    f"make_inputs of {self.path}: {name} has shape {tuple(inputs[name].shape)}, not {call.shapes[name]}"
                )
        return {name: inputs[name] for name in call.arguments}

    def reference(self, call: Call, state: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, Reference]:
        """(ref, mag) of each output, and of each argument that must change, from the exact values given.

        Floating-point tensors are handed over as fp64 copies, so the oracle can't change what it was given.
        """
        with torch.no_grad():
            answer = self._oracle(call, _widened(state), _widened(inputs))
        for name, (ref, mag) in answer.items():
            if ref.is_floating_point() and ref.dtype != torch.float64:
                raise OracleError(f"oracle of {self.path}: {name} is {ref.dtype}, not float64")
            if mag is not None and mag.shape != ref.shape:
                raise OracleError(f"oracle of {self.path}: mag of {name} has shape {tuple(mag.shape)}")
        return dict(answer)

    def _function(self, module: ModuleType, name: str) -> Callable[..., dict[str, Any]]:
        function = getattr(module, name, None)
        if not callable(function):
            raise OracleError(f"task file {self.path} defines no function {name!r}")
        return function


def _widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.detach().clone()
        for name, tensor in tensors.items()
    }
