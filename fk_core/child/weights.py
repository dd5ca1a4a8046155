"""The weights of modules that are timed: which of them may lie elsewhere in each layout.

It runs in the candidate's process, too, and binds what it needs before a candidate is loaded.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from fk_core.child.capturing import Forward
from fk_core.child.guards import plain_tensor
from fk_core.child.module import FunctionModule

_size = torch._C.TensorBase.size
_device = torch._C.TensorBase.device.__get__
_detach, _is_contiguous = torch._C.TensorBase.detach, torch._C.TensorBase.is_contiguous
_is_inference = torch._C.TensorBase.is_inference
_Module, _Parameter = torch.nn.Module, torch.nn.Parameter
_parameters, _buffers = torch.nn.Module.named_parameters, torch.nn.Module.named_buffers


def holds_tensors(forward: Forward) -> bool:
    """Whether a module has parameters or buffers, the non-persistent ones too, as far as can be seen."""
    return not isinstance(forward, _Module) or bool([*_parameters(forward), *_buffers(forward)])


def movable_weights(copies: list[Forward], names: set[str], device: str = "cuda") -> list[Tensor]:
    """The weights that a task gives to modules, by their ``names``: plain ones on a device of this type, each once.
    Those of two modules are moved apart, even if these have them in one memory.

    Not other parameters and buffers: a module may have made views of its scratch memory.
    """
    found: dict[int, Tensor] = {}
    for forward in copies:
        if isinstance(forward, FunctionModule):
            held = list(forward.held.items())
        elif isinstance(forward, _Module):
            held = [*_parameters(forward, remove_duplicate=False), *_buffers(forward, remove_duplicate=False)]
        else:
            held = []
        for name, weight in held:
            plain = type(weight) in (Tensor, _Parameter) and plain_tensor(_detach(weight)) is None
            # What was made in inference mode is of no use any more where its memory is set from outside.
            plain = plain and _is_contiguous(weight) and not _is_inference(weight)
            if name in names and plain and _device(weight).type == device and prod(_size(weight)):
                found[id(weight)] = weight
    return list(found.values())
