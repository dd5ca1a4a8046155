"""Importing a candidate file and building its modules. Runs on the untrusted side."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

MODULE_NAME = "candidate"
_TEXT = 2000
_FRAMES = 8


class ContractBroken(Exception):
    """The candidate is not what the task asks for; the message tells its author what to change."""


def import_file(path: str) -> ModuleType:
    """Execute the file as a module named ``candidate``; what it raises goes through."""
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise ContractBroken(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    spec.loader.exec_module(module)
    return module


def find_class(module: ModuleType, name: str) -> type:
    """The class that a case needs."""
    found = getattr(module, name, None)
    if not isinstance(found, type):
        defined = sorted(n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__)
        raise ContractBroken(f"the file defines no class {name}; it defines {', '.join(defined) or 'no class'}")
    if not issubclass(found, nn.Module):
        raise ContractBroken(f"{name} is not a torch.nn.Module")
    return found


def construct(
    cls: type, arguments: dict[str, Any], state: dict[str, Tensor], dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """Build one module as an engine would: construct, move, cast parameters, load weights, post-process."""
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        shown = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        raise ContractBroken(f"{cls.__name__}({shown}) can't be called: {error}") from error
    module: nn.Module = cls(**arguments)
    module.to(device)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dtype in (torch.float32, torch.float16, torch.bfloat16):
                parameter.data = parameter.data.to(dtype)
    load_state(module, state)
    module.eval()
    module.requires_grad_(False)
    prepare = getattr(module, "process_weights_after_loading", None)
    if callable(prepare):
        prepare()
    return module


def load_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """``load_state_dict(strict=True)``, with the differences by name."""
    own = module.state_dict()
    missing, extra = sorted(set(state) - set(own)), sorted(set(own) - set(state))
    shapes = [
        f"{name} has shape {list(own[name].shape)}, the baseline's has {list(state[name].shape)}"
        for name in sorted(set(own) & set(state))
        if own[name].shape != state[name].shape
    ]
    said = []
    if missing:
        said.append(f"it lacks {', '.join(missing)}")
    if extra:
        said.append(f"it has {', '.join(extra)}, which the baseline does not have (register buffers as non-persistent)")
    if said or shapes:
        raise ContractBroken("parameters and buffers must be the baseline's: " + "; ".join(said + shapes))
    module.load_state_dict(state, strict=True)


def describe(error: BaseException, scratch: str) -> dict[str, Any]:
    """An exception for the report: type, message, where in the candidate's file, a short traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(scratch)]
    where = f"line {own[-1].lineno}: {(own[-1].line or '').strip()}" if own else ""
    text = _traceback(error, scratch).replace(scratch + os.sep, "")
    message = _clean(_said(error).replace(scratch + os.sep, ""))
    return {
        "type": _clean(type(error).__name__)[:200],
        "message": _ends(message, 2 * _TEXT - 100),
        "where": _clean(where)[:300],
        "trace": _ends(_clean(text), _TEXT),
    }


def _traceback(error: BaseException, scratch: str) -> str:
    """From the first frame of the candidate's file on, if there is one: what called it is the harness's own. At most
    eight frames, that one and the last seven; the same of every exception that led to this one.
    """
    told = traceback.TracebackException(type(error), error, error.__traceback__)
    waiting = [told]
    while waiting:
        one = waiting.pop()
        one.stack = _Trimmed.of(one.stack, scratch)
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += one.exceptions or []
    return "".join(told.format())


class _Trimmed(traceback.StackSummary):
    """Frames, of which some were left out; a line says where, and how many."""

    gap: traceback.FrameSummary | None = None
    left_out = 0

    @classmethod
    def of(cls, stack: traceback.StackSummary, scratch: str) -> _Trimmed:
        first = next((n for n, frame in enumerate(stack) if frame.filename.startswith(scratch)), None)
        kept = stack[first or 0 :]
        made = cls(kept)
        if len(kept) > _FRAMES:
            head = 0 if first is None else 1
            made.left_out = len(kept) - _FRAMES
            made.gap = traceback.FrameSummary("", None, "", lookup_line=False, line="")
            made[:] = [*kept[:head], made.gap, *kept[head - _FRAMES :]]
        return made

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **how: Any) -> str:
        if frame_summary is self.gap:
            return f"  [... {self.left_out} frame{'' if self.left_out == 1 else 's'}]\n"
        return super().format_frame_summary(frame_summary, **how)


def _ends(text: str, most: int) -> str:
    """Beginning and end of a long text: of a compiler's output either may hold the reason."""
    return text if len(text) <= most else f"{text[: most // 3]}\n[...]\n{text[-(most - most // 3 - 7) :]}"


def _said(error: BaseException) -> str:
    try:
        return _ends(str(error), 10 * _TEXT)
    except Exception as other:  # noqa: BLE001 - the text of an exception is the candidate's own code
        return f"(no text: str() of it raised {type(other).__name__})"


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\\0")
