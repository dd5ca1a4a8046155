"""Timing of one case inside one process: capture the calls once per layout, then replay them turn by turn.

A turn answers with raw event readings. Ratios, intervals and the decision belong to the parent. The graphs:

``full``   gate, call, gate, call, ...   the next input does not exist before the gate after the last call wrote it
``gate``   the gates alone, over the same memory: only the judge has it, since a gate costs the same in both processes
``plain``  the calls alone on distinct cold slots

The graphs of a layout share one memory pool. ``plain`` is captured first, and what its calls returned is let go of, so
that ``full`` takes the same memory and not as much again: no part of a capture costs more than memory from the driver.
That is safe: no two graphs run at once, none needs what another one left (of the samples of ``gate`` nothing is made),
and what the calls of ``full`` left is looked at only right after a replay of it (:meth:`CaseTimer.outputs_of_call`).

Layouts differ in where everything lies that a call touches, and in the number of calls: where a cache line lies in the
chip moves a call of 1 to 2 us by up to 1%. Whatever all layouts of a process had in common there would be an error that
no number of rounds takes away (docs/measurements.md: weights did so, pristine inputs, and what a call allocates and
frees). So did the gates' code: a gate in the wrong place makes a call of two kernels 20 to 60 ns longer, and other
copies of the same code don't; layouts take copies in turn. Several layouts are captured before the exclusive window and
the parent draws one per turn. What has no graphs is timed by ``eager``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from fk_core.child import cudadrv, kernels
from fk_core.child.arena import ALIGN, Arena
from fk_core.child.capturing import (
    DeviceClock,
    Forward,
    NotCapturable,
    Sampled,
    capture,
    outputs_of,
    sampled_of,
)
from fk_core.child.refresh import Argument, regions_of, source_of

# Bound before a candidate is loaded, so that what it patches later is not what times it.
_record, _elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
_synchronize = torch.cuda.synchronize
_empty, _as_strided, _unbind, _foreach_copy = torch.empty, torch.as_strided, torch.unbind, torch._foreach_copy_
_set_data = torch._C.TensorBase.data.__set__
_ROW = 2 * kernels.SAMPLES * 4
"""Bytes that the gate of a slot samples."""
MOVED_BYTES = 8 << 20
"""Layouts have weights of their own up to so many bytes: the calls that a place matters to."""


@dataclass(frozen=True)
class Place:
    """Where a case's timing data lies in an arena: ``calls`` blocks of pristine inputs, then the gates' samples."""

    pristine: int
    samples: int
    block: int
    calls: int

    @classmethod
    def at(cls, start: int, block: int, calls: int) -> Place:
        return cls(start, start + block * calls, block, calls)

    @property
    def end(self) -> int:
        return -(-(self.samples + self.calls * _ROW) // ALIGN) * ALIGN


@dataclass
class Layout:
    """One capture: graphs, and everything that keeps their memory alive."""

    calls: int
    order: list[int]
    """Slots in the order in which the calls use them."""
    memory: torch.Tensor
    starts: list[int]
    """Where each slot begins in ``memory``."""
    samples: torch.Tensor
    """What its gates sample, as bytes: a row for each slot."""
    pristine: torch.Tensor | None
    """What its gates copy to the slots, as bytes; None where inputs are too large for that."""
    weights: torch.Tensor | None = None
    graphs: dict[str, Any] = field(default_factory=dict)
    outputs: list[list[torch.Tensor]] = field(default_factory=list)
    """Of the calls of ``full``, in their order; a replay of ``plain`` overwrites them."""


class CaseTimer:
    """Captures and replays one case on a GPU.

    ``forwards`` holds one module (or function) per weight copy; call i uses copy i mod len. ``weights`` are tensors of
    these modules, which lie elsewhere in each layout. ``place`` says where the arena holds pristine inputs and the
    gates' samples. ``sampled`` gives the arguments that are judged beside the returned outputs (those that the contract
    says must change).
    """

    def __init__(
        self,
        clock: DeviceClock,
        arena: Arena,
        place: Place,
        arguments: list[Argument],
        forwards: list[Forward],
        *,
        weights: list[torch.Tensor] | None = None,
        sampled: tuple[str, ...] = (),
    ) -> None:
        self.clock, self.arena, self.place, self.arguments = clock, arena, place, arguments
        self.forwards, self.sampled = forwards, sampled
        self.layouts: list[Layout] = []
        self.gate_copies = 2 * place.block < clock.l2_bytes / 2
        self.regions = [region for a in arguments for region in regions_of(a)]
        self.weights = weights or []
        if sum(w.nbytes for w in self.weights) > MOVED_BYTES:
            self.weights = []
        self.moved: list[torch.Tensor] = []
        """Memory of weights that no layout has."""

    def moving_shows(self) -> bool:
        """Whether a module takes notice of where its weights lie, as one does that keeps them packed by address.

        It would pack them again in the middle of a capture. So its weights are not moved again; every copy has to be
        called once before it is captured. Raises ``NotCapturable``.
        """
        if not self.weights:
            return False

        def nodes() -> dict[str, int]:
            given = [
                self.arena.tensor(self.place.pristine + a.offset, a.shape, a.dtype).clone() for a in self.arguments
            ]
            graph, _ = self._capture(lambda: self.forwards[0](*given))
            return cudadrv.graph_content(graph.raw_cuda_graph()).nodes

        before = nodes()
        self.moved.append(self._move_weights(random.Random(0)))
        if nodes() == before:
            return False
        # What it packed in that capture was never computed: it has to see another address before it is called again.
        self.moved.append(self._move_weights(random.Random(1)))
        self.weights = []
        return True

    def _views(self, layout: Layout) -> list[dict[str, torch.Tensor]]:
        """The arguments of each call, contiguous and in their order."""
        made: list[dict[str, torch.Tensor]] = [{} for _ in layout.order]
        for a in self.arguments:
            typed, size = layout.memory.view(a.dtype), a.dtype.itemsize
            strides = [prod(a.shape[dim + 1 :]) for dim in range(len(a.shape))]
            for call, slot in enumerate(layout.order):
                made[call][a.name] = _as_strided(typed, a.shape, strides, (layout.starts[slot] + a.offset) // size)
        return made

    def add_layout(self, seed: int, sample_seed: int, *, plain: bool, gate: bool, inspect: bool) -> dict[str, Any]:
        """Capture one more layout; says how many calls it has and in which order, and what its graph holds.

        ``sample_seed`` decides where the gates sample; ``plain`` captures the calls without gates, too, and ``gate``
        the gates without calls; without ``inspect`` nobody looks at what the graph holds, which takes a call of the
        driver for each node.
        """
        rng = random.Random(seed)
        place, device = self.place, self.clock.device
        calls = max(1, place.calls - rng.randrange(0, 1 + place.calls // 8))
        order = rng.sample(range(calls), calls)
        copies = rng.sample(range(len(self.forwards)), len(self.forwards))
        stream = self.clock.stream.cuda_stream
        with torch.cuda.device(device), torch.no_grad():
            starts, end = [], 0
            for gap in rng.choices(range(64), k=calls):
                starts.append(end + gap * ALIGN)
                end = starts[-1] + place.block
            memory = _empty(end + rng.randrange(1, 512) * 4096, dtype=torch.uint8, device=device)
            samples = self._bytes(calls * _ROW, rng)
            pristine = self._bytes(calls * place.block, rng) if self.gate_copies else None
            layout = Layout(calls, order, memory, starts, samples, pristine)
            self._take(layout)
            if self.weights:
                layout.weights = self._move_weights(rng)
            if plain or not self.gate_copies:
                self._fill(layout)
            views, gates = self._views(layout), self._gates(layout, sample_seed)

            holes: list[torch.Tensor] = []
            sizes = [512 * many for many in rng.choices(range(1, 8), k=calls)]

            def call(i: int) -> list[torch.Tensor]:
                # Else what a call allocates and frees lies in the same place for every call of a layout.
                holes.append(_empty(sizes[i], dtype=torch.uint8, device=device))
                inputs = views[i]
                result = self.forwards[copies[i % len(copies)]](*inputs.values())
                returned = outputs_of(result)
                if not all(output.is_contiguous() for output in returned):
                    raise NotCapturable("an output is not contiguous, so that its memory can't be sampled")
                return returned + [inputs[name] for name in self.sampled]

            def timed(i: int) -> Sampled | None:
                layout.outputs.append(call(i))
                return sampled_of(layout.outputs[-1])

            def batch(made: Callable[[int], Sampled | None]) -> list[Sampled | None]:
                """Gates around what ``made`` does for each call: it gives what the gate behind the call samples."""
                behind: list[Sampled | None] = []
                for i in range(calls):
                    # Nothing is behind the first gate: it samples its own slot, until the last one overwrites that.
                    gates(order[i], behind[-1] if behind else None)
                    behind.append(made(i))
                gates(order[0], behind[-1], copy=False)
                return behind

            if plain:
                # What the calls returned is not kept: its memory is for ``full``.
                layout.graphs["plain"] = self._capture(lambda: [call(i) for i in range(calls)])[0]
                holes.clear()
            full, behind = self._capture(lambda: batch(timed), layout.graphs.get("plain"))
            layout.graphs["full"] = full
            if gate:
                layout.graphs["gate"] = self._capture(lambda: batch(behind.__getitem__), full)[0]
        content = cudadrv.graph_content(full.raw_cuda_graph()) if inspect else None
        for graph in layout.graphs.values():
            graph.instantiate()
            # Else the first replay does it, in somebody's turn: 0.1 to 0.3 ms that the outside clock sees.
            cudadrv.upload(graph.raw_cuda_graph_exec(), stream)
        self.layouts.append(layout)
        told = {"calls": calls, "order": order}
        return told if content is None else told | {"nodes": content.nodes, "programmatic": content.programmatic}

    def _capture(self, body: Callable[[], Any], pool_of: Any = None) -> tuple[Any, Any]:
        return capture(self.clock, body, pool_of)

    def _gates(self, layout: Layout, seed: int) -> Callable[..., None]:
        """What launches the gates of a layout: ``gate(slot, behind)`` copies the pristine inputs of ``slot`` to where
        its call finds them and samples ``behind``, or the slot itself, into the row of ``slot``; without ``copy`` it
        only samples.
        """
        p, stream, copies = self.place, self.clock.stream.cuda_stream, self.clock.gates
        launch = copies[len(self.layouts) % len(copies)].launch
        words, whole = p.block // 4 if self.gate_copies else 0, p.block // 4
        blocks = 1 + -(-words // kernels.GATE_WORDS)
        memory, samples = layout.memory.data_ptr(), layout.samples.data_ptr()
        # Gates that copy nothing are given an address all the same.
        inputs = _address(self.arena) + p.pristine if layout.pristine is None else layout.pristine.data_ptr()
        slots = [
            (inputs + slot * p.block, memory + start, seed + slot, samples + slot * _ROW)
            for slot, start in enumerate(layout.starts)
        ]

        def gate(slot: int, behind: Sampled | None, *, copy: bool = True) -> None:
            pristine, x, positions, row = slots[slot]
            sampled = behind or (x, x, whole, whole)
            if copy:
                launch(blocks, stream, pristine, x, words, *sampled, positions, row)
            else:
                launch(1, stream, pristine, x, 0, *sampled, positions, row)

        return gate

    def _bytes(self, size: int, rng: random.Random) -> torch.Tensor:
        """So many bytes of memory, at a random offset from where the allocator begins."""
        offset = rng.randrange(0, 64) * ALIGN
        return _as_strided(_empty(offset + size, dtype=torch.uint8, device=self.clock.device), (size,), (1,), offset)

    def _take(self, layout: Layout) -> None:
        """Copy the arena's pristine inputs to those of the layout, where it has its own."""
        if layout.pristine is not None:
            size = layout.pristine.numel()
            layout.pristine.copy_(self.arena.tensor(self.place.pristine, (size,), torch.uint8))

    def _move_weights(self, rng: random.Random) -> torch.Tensor:
        """Move the weights to memory of their own, which is given back: the graphs of a layout need it."""
        starts, end = [], 0
        for weight, gap in zip(self.weights, rng.choices(range(32), k=len(self.weights)), strict=True):
            starts.append(end + gap * ALIGN)
            end = starts[-1] + -(-weight.nbytes // ALIGN) * ALIGN
        room = _empty(end + rng.randrange(1, 512) * 4096, dtype=torch.uint8, device=self.clock.device)
        typed = {w.dtype: room.view(w.dtype) for w in self.weights}
        moved = [
            _as_strided(typed[w.dtype], w.shape, w.stride(), start // w.dtype.itemsize)
            for w, start in zip(self.weights, starts, strict=True)
        ]
        _foreach_copy(moved, self.weights)
        for weight, new in zip(self.weights, moved, strict=True):
            _set_data(weight, new)
        return room

    def _fill(self, layout: Layout) -> None:
        """Write the pristine inputs to all slots."""
        words, memory = self.place.block // 4, layout.memory.view(torch.int32)
        given = self.arena.tensor(self.place.pristine, (layout.calls, words), torch.int32)
        _foreach_copy([_as_strided(memory, (words,), (1,), start // 4) for start in layout.starts], _unbind(given))

    def _refresh(self, layout: Layout, seed: int) -> None:
        """Give all slots of a layout other inputs than they had: see ``fk_core.child.refresh``."""
        p, stream, launch = self.place, self.clock.stream.cuda_stream, self.clock.refresh.launch
        source, block = _address(self.arena) + p.pristine, p.block // 4
        shift = source_of(0, layout.calls, seed)
        # Of each part: where its values come from, where they go, its first slot, its slots, and by how many they move.
        if layout.pristine is not None:
            parts = [(source, layout.pristine.data_ptr(), 0, layout.calls, shift)]
        else:
            memory = layout.memory.data_ptr()
            parts = [
                (source + source_of(slot, layout.calls, seed) * p.block, memory + start, slot, 1, 0)
                for slot, start in enumerate(layout.starts)
            ]
        for region in self.regions:
            first, count = region.first, region.end - region.first
            grid = -(-count // kernels.REFRESH_WORDS)
            for at, to, slot, rows, by in parts:
                what = (
                    at + first * 4,
                    to + first * 4,
                    count,
                    block,
                    region.signs,
                    seed,
                    slot * block + first,
                    rows,
                    by,
                )
                launch(grid, stream, *what, rows=rows)

    def turn(
        self, index: int, kind: str, prime: int, timed: int, *, fill: bool = False, fresh: int | None = None
    ) -> dict[str, Any]:
        """Replay one layout; ``kind`` is ``full``, ``gate``, ``plain`` (all cold) or ``warm`` (the calls alone, the
        cache as it is). ``fill``: with the inputs that the arena holds by now, and so that the judge finds the samples.
        ``fresh``: timed batch n begins on other inputs, which follow from those of the arena and ``fresh`` + n.

        Gives, per timed batch, ``full_us``, ``gate_us`` or ``plain_us``, and how many ``calls`` a batch has.
        """
        layout, clock = self.layouts[index], self.clock
        if fill:
            self._take(layout)
            if layout.pristine is None:  # else the gates write the slots, and who reads them too early finds old values
                self._fill(layout)
            _synchronize()
        name = "plain" if kind == "warm" else kind
        graph, stream = layout.graphs[name], clock.stream
        used: list[Any] = []
        spare = iter(clock.events)
        with torch.cuda.device(clock.device), torch.cuda.stream(stream):
            for batch in range(prime + timed):
                if fresh is not None and batch >= prime:
                    self._refresh(layout, fresh + batch - prime)
                if kind != "warm":
                    clock.flush(stream.cuda_stream)
                if batch < prime:
                    graph.replay()
                else:
                    start, end = next(spare)
                    _record(start, stream)
                    graph.replay()
                    _record(end, stream)
                    used.append((start, end))
            stream.synchronize()
        if fill:
            self.show_samples(index)
        return {f"{name}_us": [_elapsed(a, b) * 1e3 for a, b in used], "calls": layout.calls}

    def show_samples(self, index: int) -> None:
        """Let the judge see what the gates of the last replay of a layout have sampled."""
        samples = self.layouts[index].samples
        self.arena.tensor(self.place.samples, (samples.numel(),), torch.uint8).copy_(samples)
        _synchronize()

    def outputs_of_call(self, index: int, call: int) -> list[torch.Tensor]:
        """What the call of a layout returned, as the last replay left it: one of ``full``, since those of ``plain``
        leave their own results in the same memory. An audit replays ``full`` itself, on new inputs, before it looks.
        """
        return self.layouts[index].outputs[call]

    def drop(self) -> None:
        self.layouts.clear()


def _address(arena: Arena) -> int:
    base = getattr(arena, "memory", None)
    if base is None:
        raise TypeError("gates need device memory")
    return int(base.address)
