"""Capturing calls in a CUDA graph, and what all timed cases of a process share on a GPU.

Like ``timing`` it runs in the candidate's process, too, and binds what it needs before a candidate is loaded.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import torch

from fk_core.child import kernels

Forward = Callable[..., Any]
Sampled = tuple[int, int, int, int]
"""Addresses of the two outputs that a gate samples, and how many words each has."""
_MOST_TIMED = 16
"""Timed batches of a turn, at most."""
_GATE_COPIES = 8
"""Copies of the gate's code, which lie where the driver puts them."""

_Event, _CUDAGraph, _Stream = torch.cuda.Event, torch.cuda.CUDAGraph, torch.cuda.Stream
_end_allocate = getattr(torch._C, "_cuda_endAllocateToPool", None)
_release_pool = getattr(torch._C, "_cuda_releasePool", None)


class NotCapturable(Exception):
    """The calls can't be captured in a CUDA graph; ``unjoined`` where work was left on a side stream."""

    def __init__(self, message: str, *, unjoined: bool = False) -> None:
        super().__init__(message)
        self.unjoined = unjoined


class DeviceClock:
    """What all cases of a process share: stream, events, flush buffer, loaded kernels."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            props = torch.cuda.get_device_properties(device)
            binaries = kernels.prepare(props.major * 10 + props.minor)
            torch.zeros(1, device=device)
            self.l2_bytes = int(getattr(props, "L2_cache_size", 0)) or 64 << 20
            self.gates = [kernels.Kernel(binaries["fk_gate"], 9) for _ in range(_GATE_COPIES)]
            self.refresh, self.flush_kernel = (
                kernels.Kernel(binaries[name], count) for name, count in (("fk_refresh", 9), ("fk_flush", 3))
            )
            factor = 2.5 if props.major >= 10 else 2.0
            self.flush_words = int(self.l2_bytes * factor) // 4 // kernels.FLUSH_WORDS * kernels.FLUSH_WORDS
            self.flush_buffer = torch.zeros(self.flush_words, dtype=torch.int32, device=device)
            self.sink = torch.zeros(64, dtype=torch.int32, device=device)
            self.stream = _Stream(device)
            self.events = [(_Event(enable_timing=True), _Event(enable_timing=True)) for _ in range(_MOST_TIMED)]

    def flush(self, stream: int) -> None:
        self.flush_kernel.launch(
            self.flush_words // kernels.FLUSH_WORDS,
            stream,
            self.flush_buffer.data_ptr(),
            self.sink.data_ptr(),
            self.flush_words,
        )


def outputs_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a call returned, in order; None gives none."""
    if result is None:
        return []
    return list(result) if type(result) in (tuple, list) else [result]


def sampled_of(outputs: list[torch.Tensor]) -> Sampled | None:
    """The first two outputs of a call, or the only one twice; None where there is none."""
    if not outputs:
        return None
    y0, y1 = outputs[0], outputs[min(1, len(outputs) - 1)]
    words = [y.numel() * y.element_size() // 4 for y in (y0, y1)]
    return y0.data_ptr(), y1.data_ptr(), words[0], words[1]


def capture(clock: DeviceClock, body: Callable[[], Any], pool_of: Any = None) -> tuple[Any, Any]:
    """A CUDA graph of what ``body`` launches, not yet instantiated, and what ``body`` returned.

    ``pool_of``: a living graph whose memory pool to share; what nobody holds of its memory any more is used again. What
    ``body`` returned is held until the capture has ended, so that no call in it takes the memory of another's output.
    Raises ``NotCapturable``.
    """
    graph = _CUDAGraph(keep_graph=True)
    stream = clock.stream
    stream.wait_stream(torch.cuda.current_stream(clock.device))
    pool = torch.cuda.graph_pool_handle() if pool_of is None else pool_of.pool()
    collecting = gc.isenabled()
    gc.disable()  # a finalizer that waits for the device would void the capture
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = body()
            except BaseException as error:
                with contextlib.suppress(Exception):  # the capture is void already
                    graph.capture_end()
                _give_up(clock.device, pool)
                raise NotCapturable(f"{type(error).__name__}: {error}"[:400]) from error
            try:
                graph.capture_end()
            except Exception as error:
                _give_up(clock.device, pool)
                text = str(error)
                raise NotCapturable(text[:400], unjoined="unjoined" in text.lower()) from error
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream(clock.device).wait_stream(stream)
    return graph, result


def _give_up(device: torch.device, pool: Any) -> None:
    """End what a failed capture began. Up to torch 2.11 ``capture_end`` raises before it takes the allocator and the
    default generator out of capture, and nothing does so later.
    """
    index = device.index or 0
    if _end_allocate is None or _release_pool is None:
        return
    try:
        _end_allocate(index, pool)
    except RuntimeError:  # it was ended: this torch does so itself
        return
    _release_pool(index, pool)
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())
