"""What a candidate leaves standing in its process: flags, modes, hooks, threads, children, environment.

Only *semantic* state counts, which changes what other modules compute or how they are measured; heuristics such as
``cudnn.benchmark`` do not. What only looks odd is a warning.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from fk_core.child.finding import WARN, Finding, finding
from fk_core.child.origins import Origins

_open, _read, _close, _listdir, _getpid = os.open, os.read, os.close, os.listdir, os.getpid
_affinity, _priority, _getsignal = os.sched_getaffinity, os.getpriority, signal.getsignal
_getprofile, _gettrace = sys.getprofile, sys.gettrace
_environ = os.environ
_is_alive, _current = threading.Thread.is_alive, threading.current_thread
_dump_op, _impls = torch._C._dispatch_dump, torch.library._impls
_SUBNORMAL, _SLIGHT = 2.0**-1060, 2.0**-60

_OPS = (
    *("add.Tensor", "add_.Tensor", "sub.Tensor", "mul.Tensor", "mul_.Tensor", "div.Tensor", "copy_", "clone"),
    *("_to_copy", "to.dtype", "empty.memory_format", "empty_like", "empty_strided", "zeros_like", "fill_.Scalar"),
    *("softmax.int", "_softmax", "silu", "silu.out", "exp", "sqrt", "rsqrt", "pow.Tensor_Scalar", "square"),
    *("sum", "sum.dim_IntList", "mean", "mean.dim", "amax", "max", "matmul", "mm", "bmm", "addmm", "linear"),
    *("rms_norm", "_fused_rms_norm", "layer_norm", "native_layer_norm", "allclose", "equal", "isclose"),
    *("view", "reshape", "contiguous", "slice.Tensor", "select.int", "normal_", "uniform_", "random_"),
    *("_local_scalar_dense", "scaled_dot_product_attention", "embedding", "index.Tensor", "topk", "cat"),
)
_LOADER_VARIABLES = frozenset({"LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONUSERBASE"})
_QUIET_VARIABLES = (
    "TORCH",
    "TRITON",
    "CUDA_HOME",
    "CUDA_PATH",
    "MAX_JOBS",
    "CC",
    "CXX",
    "PATH",
    "KMP_",
    "PYTORCH",
    "_TORCH",
)
_HOOK_TABLES = (
    *("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"),
    *("_global_module_registration_hooks", "_global_parameter_registration_hooks", "_global_buffer_registration_hooks"),
)
_LIBRARY_CHILDREN = ("compile_worker", "resource_tracker", "torch/_inductor", "triton")


def _flag_readers() -> dict[str, Callable[[], Any]]:
    matmul, cudnn, cuda = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cuda
    readers: dict[str, Callable[[], Any]] = {
        "torch default dtype": torch.get_default_dtype,
        "torch default device": torch.get_default_device,
        "float32 matmul precision": torch.get_float32_matmul_precision,
        "allow_tf32 of cuda.matmul": lambda: matmul.allow_tf32,
        "allow_tf32 of cudnn": lambda: cudnn.allow_tf32,
        "allow_fp16_reduced_precision_reduction": lambda: matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": lambda: matmul.allow_bf16_reduced_precision_reduction,
        "cudnn enabled": lambda: cudnn.enabled,
        "flash attention enabled": cuda.flash_sdp_enabled,
        "memory-efficient attention enabled": cuda.mem_efficient_sdp_enabled,
        "math attention enabled": cuda.math_sdp_enabled,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
        "CPU threads of torch": torch.get_num_threads,
        "autocast on the GPU": lambda: torch.is_autocast_enabled("cuda"),
        "autocast on the CPU": lambda: torch.is_autocast_enabled("cpu"),
        "function modes": torch._C._len_torch_function_stack,
        "dispatch modes": torch._C._len_torch_dispatch_stack,
        "inference mode": torch.is_inference_mode_enabled,
        "denormals are zero": _denormals_are_zero,
        "rounding to nearest": _rounds_to_nearest,
    }
    if hasattr(matmul, "allow_fp16_accumulation"):
        readers["allow_fp16_accumulation"] = lambda: matmul.allow_fp16_accumulation
    return readers


def _denormals_are_zero() -> bool:
    return _SUBNORMAL * float(_getpid() > 0) == 0.0


def _rounds_to_nearest() -> bool:
    one = float(_getpid() > 0)
    return one + _SLIGHT == one == one - _SLIGHT


_READERS = _flag_readers()


class Standing:
    """The state of the process when this was made."""

    def __init__(self) -> None:
        self.flags = {name: _read_flag(reader) for name, reader in _READERS.items()}
        self.grad = torch.is_grad_enabled()
        self.hooks = {name: set(getattr(nn_module, name, {})) for name in _HOOK_TABLES}
        self.profile, self.trace = _getprofile(), _gettrace()
        self.thread_hooks = (threading.__dict__.get("_profile_hook"), threading.__dict__.get("_trace_hook"))
        self.environ = dict(_environ)
        self.signals = {number: _getsignal(number) for number in signal.valid_signals()}
        self.affinity, self.priority = _affinity(0), _priority(os.PRIO_PROCESS, 0)
        self.finders = list(sys.meta_path)
        self.path = list(sys.path)
        self.impls = set(_impls)
        self.children = set(_children())
        self.tools = _monitoring_tools()
        self.collecting = list(gc.callbacks)
        self.ops = {name: _dispatch(f"aten::{name}") for name in _OPS}

    def compare(self, origins: Origins, threads: Iterable[threading.Thread], *, at_rest: bool) -> list[Finding]:
        """Findings for what changed since. ``at_rest``: no call of the candidate runs, so nothing of it may."""
        found = [*self._flags(), *self._hooks(origins), *self._tools(), *self._dispatcher(origins)]
        found += [*self._environment(), *self._process(origins)]
        if at_rest:
            found += [*_threads(origins, threads), *self._children_left()]
        return found

    def _flags(self) -> Iterable[Finding]:
        for name, reader in _READERS.items():
            before, now = self.flags[name], _read_flag(reader)
            if before != now:
                what = f"{name}: was {before}, is now {now}"
                yield finding("global_state", what, instead="set it inside forward and restore it, or leave it alone")
        if torch.is_grad_enabled() != self.grad:
            yield finding(
                "global_state",
                f"grad mode: was {self.grad}, is now {not self.grad}",
                instead="use torch.no_grad() around your own code",
                severity=WARN,
            )

    def _hooks(self, origins: Origins) -> Iterable[Finding]:
        for name, before in self.hooks.items():
            for key, hook in list(getattr(nn_module, name, {}).items()):
                if key not in before and origins.of_value(hook) == "candidate":
                    what = f"a hook on every module of the process ({name})"
                    yield finding("global_hook", what, instead="register hooks on your own modules only")
        for callback in gc.callbacks:
            if not any(callback is old for old in self.collecting) and origins.of_value(callback) == "candidate":
                yield finding("trace_hook", "a callback of the garbage collector stands", instead="leave gc alone")
        for finder in sys.meta_path:
            if not any(finder is old for old in self.finders) and origins.of_value(finder) == "candidate":
                yield finding("global_hook", "an import hook in sys.meta_path", instead="import plainly")

    def _tools(self) -> Iterable[Finding]:
        profile, trace = _getprofile(), _gettrace()
        standing = [
            ("profile function", profile is not self.profile),
            ("trace function", trace is not self.trace),
            ("profile or trace function for new threads", self.thread_hooks != _thread_hooks()),
            ("sys.monitoring tool", _monitoring_tools() != self.tools),
        ]
        for what, changed in standing:
            if changed:
                yield finding("trace_hook", f"a {what} stands", instead="leave profilers and tracers to the harness")

    def _dispatcher(self, origins: Origins) -> Iterable[Finding]:
        changed = {name for name, before in self.ops.items() if _dispatch(f"aten::{name}") != before}
        for key in set(_impls) - self.impls:
            space, _, rest = key.partition("/")
            if space in ("aten", "prim", "prims"):
                changed.add(rest.rpartition("/")[0])
        for name in sorted(changed):
            for line in _dispatch(f"aten::{name}").splitlines():
                file = line.partition("registered at ")[2].partition(" ::")[0].rpartition(":")[0]
                # A library's own kernels name the source that they were compiled from, which is not on this machine.
                if (
                    file.startswith("/")
                    and not file.endswith((".cpp", ".cu", ".h"))
                    and origins.of(file) == "candidate"
                ):
                    yield finding(
                        "patched_function",
                        f"the dispatcher's kernel for aten::{name} was replaced ({line.partition(':')[0]})",
                        where=f"line {line.partition(' ::')[0].rpartition(':')[2]}",
                        instead="define an operator in a namespace of your own",
                    )

    def _environment(self) -> Iterable[Finding]:
        now = dict(_environ)
        for name in sorted(set(now) | set(self.environ)):
            if now.get(name) == self.environ.get(name) or name.startswith(_QUIET_VARIABLES):
                continue
            what = f"environment variable {name}: was {self.environ.get(name)!r}, is now {now.get(name)!r}"
            if name in _LOADER_VARIABLES:
                yield finding("persistence", what, instead="leave the loader's and Python's variables alone")
            else:
                yield finding("environment", what, severity=WARN)
        for entry in sys.path:
            if entry not in self.path and _worth_a_word(entry):
                yield finding("environment", f"sys.path has a new entry {entry!r}", severity=WARN)

    def _process(self, origins: Origins) -> Iterable[Finding]:
        for number, before in self.signals.items():
            handler = _getsignal(number)
            if handler is not before and callable(handler) and origins.of_value(handler) == "candidate":
                yield finding("global_state", f"a handler for signal {int(number)}", instead="leave signals alone")
        if _affinity(0) != self.affinity or _priority(os.PRIO_PROCESS, 0) != self.priority:
            yield finding("contention", "CPU affinity or priority changed", instead="leave scheduling to the harness")

    def _children_left(self) -> Iterable[Finding]:
        for pid in _children():
            if pid in self.children:
                continue
            command = _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
            state = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if not state or state[0] == "Z" or any(word in command for word in _LIBRARY_CHILDREN):
                continue
            what = f"process {pid} is still running: {command[:120]}"
            yield finding("process", what, instead="wait for every program that you start, and start none in forward")


def _worth_a_word(entry: str) -> bool:
    """Whether a new entry of ``sys.path`` is worth a word: libraries add folders of their own."""
    return "site-packages" not in entry and not entry.endswith(".zip")


def _threads(origins: Origins, started: Iterable[threading.Thread]) -> Iterable[Finding]:
    mine = {id(thread): thread for thread in started}
    for thread in list(threading._active.values()):  # type: ignore[attr-defined]
        target = thread.__dict__.get("_target")
        run = type(thread).__dict__.get("run")
        if any(part is not None and origins.of_value(part) == "candidate" for part in (target, run)):
            mine[id(thread)] = thread
    for thread in mine.values():
        if thread is not _current() and _is_alive(thread):
            yield finding(
                "thread",
                f"a thread of the candidate is still running: {thread.__dict__.get('_name', '')}",
                instead="do all work on the calling thread and the current stream before returning",
            )


def _read_flag(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except Exception as error:  # noqa: BLE001 - a flag that cannot be read is compared by how it fails
        return f"unreadable: {type(error).__name__}"


def _thread_hooks() -> tuple[Any, Any]:
    held = threading.__dict__
    return (held.get("_profile_hook"), held.get("_trace_hook"))


def _monitoring_tools() -> tuple[str | None, ...]:
    monitoring = getattr(sys, "monitoring", None)
    return () if monitoring is None else tuple(monitoring.get_tool(number) for number in range(6))


def _dispatch(name: str) -> str:
    try:
        return _dump_op(name)
    except RuntimeError:
        return ""


def _text(path: str) -> str:
    try:
        handle = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return _read(handle, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        _close(handle)


def _children() -> list[int]:
    """Processes that this one started and that still exist."""
    found: list[int] = []
    try:
        tasks = _listdir("/proc/self/task")
    except OSError:  # no descriptor left, or no /proc: the parent process counts what is left alive
        return []
    for task in tasks:
        text = _text(f"/proc/self/task/{task}/children")
        found += [int(word) for word in text.split() if word.isdigit()]
    return found
