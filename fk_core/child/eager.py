"""Calls one by one, which the parent's clock times: on a CPU, and on a GPU what can't be captured.

Inputs are views of the arena, as those of judged calls are. The judge writes their values shortly before each turn, and
nothing is asked of the candidate's process in between, so that it has no time of its own for them. Outputs are copied
into the arena as part of the turn: when it is over they are there, where the judge reads them, or they are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

import torch

from fk_core.child.arena import Arena, poison
from fk_core.child.bounds import MOST_ALIASES, MOST_OUTPUTS
from fk_core.child.capturing import Forward, outputs_of
from fk_core.child.memory import copy_bytes, overlap
from fk_core.child.refresh import Argument
from fk_core.child.timing import Place

# Bound before any candidate is loaded.
_Tensor, _type, _synchronize = torch.Tensor, type, torch.cuda.synchronize
_sum, _map, _tuple, _same = sum, map, tuple, repeat
_address, _device = torch._C.TensorBase.data_ptr, torch._C.TensorBase.device.__get__


class Results(NamedTuple):
    """Where the outputs of slot i go: at ``at`` + i * ``block``, each at its (offset, bytes) from there. A tuple, which
    nobody changes.
    """

    at: int
    block: int
    outputs: tuple[tuple[int, int], ...]


class EagerCase:
    """One case whose calls run one by one; ``forward`` is the module that was judged."""

    __slots__ = ("arena", "device", "forward", "kept", "results", "views")

    def __init__(
        self, forward: Forward, arena: Arena, place: Place, arguments: list[Argument], results: Results
    ) -> None:
        self.forward, self.arena, self.results = forward, arena, results
        self.device = arena.device
        self.kept: list[tuple[list[torch.Tensor], list[Any]]] = []
        self.views = [
            [arena.tensor(start + a.offset, a.shape, a.dtype) for a in arguments]
            for start in range(place.pristine, place.pristine + place.calls * place.block, place.block)
        ]

    def turn(self, order: list[int], keep: int, *, idle: bool = False) -> int:
        """Call each slot of ``order`` once, and give how many were called. The last ``keep`` inputs and outputs stay
        alive until :meth:`held`.

        ``idle``: all the same without the calls; the outputs of the last one are copied again and again.

        A call can walk frames to everything here. The loop, its count and what it is given run in C, out of what no
        frame holds, so that nothing that a call changes is about this turn: whoever ends the loop early, through the
        garbage collector, gets a count that the parent does not take.
        """
        forward = _returning(self.kept[-1][1]) if idle else self.forward
        return _made(
            _sum(
                _map(
                    EagerCase._call,  # whatever ``self`` is
                    _same(self),
                    _same(forward),
                    _same(self.arena),
                    _same(self.results),
                    _tuple(order),
                    _same(keep),
                )
            ),
            self.device,
        )

    def _call(self, forward: Forward, arena: Arena, results: Results, slot: int, keep: int) -> int:
        given, kept = self.views[slot], self.kept
        try:
            outputs = outputs_of(forward(*given))
        except StopIteration as error:  # which would end the loop as if it were over
            raise RuntimeError(f"forward raised StopIteration: {error}") from error
        _deliver(arena, results, slot, outputs, given)
        kept.append((given, outputs))
        if len(kept) > keep:
            del kept[0]
        return 1

    def held(self) -> dict[str, list[Any]]:
        """What of the last calls shares memory: ``aliases``, pairs (output, input) of one call; ``earlier``, outputs
        in the memory of another call's outputs.
        """
        kept, self.kept = self.kept, self.kept[-1:]
        aliases: set[tuple[int, int]] = set()
        earlier: set[int] = set()
        olds: list[torch.Tensor] = []
        for given, outputs in kept:
            own = []
            for o, output in enumerate(outputs[:MOST_OUTPUTS]):
                if _type(output) is not _Tensor:
                    continue
                shared = {(o, i) for i, tensor in enumerate(given) if overlap(output, tensor)}
                aliases |= shared
                if not shared:  # the memory of a slot's argument comes again with the slot
                    own.append(output)
                    if any(overlap(output, old) for old in olds):
                        earlier.add(o)
            olds += own
        return {"aliases": sorted(list(pair) for pair in aliases)[:MOST_ALIASES], "earlier": sorted(earlier)}


def _made(calls: int, device: torch.device) -> int:
    if device.type == "cuda":
        _synchronize()
    return calls


def _deliver(arena: Arena, results: Results, slot: int, outputs: list[Any], given: list[torch.Tensor]) -> None:
    """Copy outputs byte by byte. Where one was not returned as a plain tensor of the right size there is poison,
    whatever the call itself wrote there.
    """
    at, block, places = results
    start = at + slot * block
    for number, (offset, size) in enumerate(places):
        value = outputs[number] if len(outputs) == len(places) else None
        if not _is_own(value, arena, given) or not copy_bytes(value, arena.address(start + offset, size), size):
            poison(arena, start + offset, size)


def _is_own(value: Any, arena: Arena, given: list[torch.Tensor]) -> bool:
    """Whether an output is a plain tensor on this device, and not in the arena, except in an argument."""
    if _type(value) is not _Tensor or _device(value).type != arena.device.type:
        return False
    return not arena.holds(_address(value)) or any(overlap(value, tensor) for tensor in given)


def _returning(outputs: list[Any]) -> Callable[..., list[Any]]:
    return lambda *inputs: outputs
