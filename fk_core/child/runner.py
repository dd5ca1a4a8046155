"""What a process that runs an operator does when asked: build modules, call them, capture and time them.

The same code serves the candidate (untrusted), the twin (a baseline in the candidate's place) and the judge's own
baseline, so that both sides of a comparison are measured alike. ``Runner.handle`` answers one request.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from fk_core.child import cudadrv, layouts
from fk_core.child.arena import Arena, open_arena
from fk_core.child.bounds import MOST_ALIASES, MOST_DIMENSIONS, MOST_OUTPUTS, MOST_TEXT, told
from fk_core.child.calls import DTYPES
from fk_core.child.capturing import DeviceClock, Forward, NotCapturable, capture, outputs_of
from fk_core.child.eager import EagerCase, Results
from fk_core.child.guards import plain_tensor
from fk_core.child.memory import Extents, copy_bytes, extent, last_stride, overlap, shared
from fk_core.child.refresh import Argument
from fk_core.child.timing import CaseTimer, Place
from fk_core.child.weights import holds_tensors, movable_weights

Build = Callable[[str, dict[str, Any], dict[str, Tensor], torch.dtype, torch.device], Forward]

KEEP_CALLS = 3
"""Calls whose outputs stay alive, besides those that take no more than ``KEEP_BYTES``: these all do."""
KEEP_BYTES = 64 << 10
QUICK = frozenset({"arena", "call", "make", "outputs", "samples", "try", "turn"})
"""Requests behind which a candidate's process may look for the next one without falling asleep. Not those of eager
timing: there the CPU time of this process is charged."""
_M_PERTURB, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -6, -3, -1
_HEAP_BLOCK, _HEAP_BLOCKS = 32 << 20, 24
"""The largest block that glibc takes from its heap; how many outputs at a time a heap gets ready for."""
_POISON = 0x7F
_COPIES_WITHOUT_STATE = 4

# Bound before any candidate is loaded.
_address = torch._C.TensorBase.data_ptr
_size = torch._C.TensorBase.size
_dtype = torch._C.TensorBase.dtype.__get__
_device = torch._C.TensorBase.device.__get__
_detach = torch._C.TensorBase.detach
_no_grad = torch.no_grad
_synchronize = torch.cuda.synchronize


class Runner:
    """Modules, arenas and timers of one job in one process. ``build`` makes a forward function from init and state."""

    # No instance dictionary: nobody gives this object methods of his own.
    __slots__ = (
        *("_clock", "_extents", "_held", "_large", "_libc", "_views"),
        *("arenas", "build", "copies", "device", "eager", "kept", "modules", "origins", "timers", "unmoved"),
    )

    def __init__(self, device: torch.device, build: Build) -> None:
        self.device, self.build = device, build
        self.arenas: dict[str, Arena] = {}
        self.modules: dict[str, tuple[dict[str, Any], Forward]] = {}
        self.kept: dict[int, list[Tensor]] = {}
        self._extents: dict[int, list[tuple[int, int]]] = {}
        self._held = Extents()
        self._large: list[int] = []
        self.copies: dict[str, list[Forward]] = {}
        self.unmoved: set[str] = set()
        """Keys of modules that take notice of where their weights lie: see ``CaseTimer.moving_shows``."""
        self.origins: list[Tensor] = []
        """Memory in which weights of copies have lain: a module may know the address, wherever they are now."""
        self.timers: dict[str, CaseTimer] = {}
        self.eager: dict[str, EagerCase] = {}
        self._clock: DeviceClock | None = None
        self._views: dict[tuple[Any, ...], Tensor] = {}
        self._libc = ctypes.CDLL(None)

    @property
    def clock(self) -> DeviceClock:
        if self._clock is None:
            self._clock = DeviceClock(self.device)
        return self._clock

    def handle(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Answer one request; ``do`` names it. Exceptions of the operator go through to the caller."""
        verb: Callable[..., dict[str, Any]] = getattr(self, f"do_{body['do']}")
        return verb(body, fds)

    def do_arena(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        try:
            self.arenas[body["name"]] = open_arena(fds[0], body["size"], self.device)
        finally:
            for fd in fds:
                os.close(fd)
        return {}

    def do_make(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Build the module ``key`` from ``entry``, ``init`` and the state that lies in the main arena."""
        self.modules[body["key"]] = (body, self._build(body))
        return {}

    def _build(self, recipe: dict[str, Any]) -> Forward:
        state = {name: self._view(place).clone() for name, place in recipe["state"].items()}
        return self.build(recipe["entry"], dict(recipe["init"]), state, DTYPES[recipe["dtype"]], self.device)

    def _view(self, place: dict[str, Any], arena: str = "main") -> Tensor:
        """A tensor in an arena: offset, shape and dtype, and the shape of the ``part`` of it that is meant, if any.

        The same place is the same tensor object again, as an engine's buffers are: whoever remembers results by object
        and version is found out, since the judge writes to it where torch does not see it.
        """
        part = place.get("part")
        key = (arena, place["at"], tuple(place["shape"]), place["dtype"], part and tuple(part))
        found = self._views.get(key)
        if found is None:
            tensor = self.arenas[arena].tensor(place["at"], tuple(place["shape"]), DTYPES[place["dtype"]])
            found = self._views[key] = layouts.part(tensor, tuple(part)) if part else tensor
        return found

    def do_call(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One call. Outputs are copied byte by byte to where ``outputs`` says, right after the call returns."""
        forward = self.modules[body["key"]][1]
        inputs = [self._view(place) for place in body["inputs"]]
        self._poison([o["bytes"] for o in body["outputs"]], on=True)
        try:
            with _no_grad():
                made = outputs_of(forward(*inputs))
            described, tensors = self._collect(made[:MOST_OUTPUTS], body["outputs"], inputs)
        finally:
            self._poison([], on=False)
        aliases = self._aliases(tensors, inputs)
        given = {o for o, _ in aliases}
        earlier = [o for o, output in enumerate(tensors) if o not in given and self._held.touched_by(extent(output))]
        self._keep(body["seq"], tensors, given)
        self._copy_again(body.get("again", []))
        self._settle()
        return {"returned": len(made), "outputs": described, "aliases": aliases, "earlier": earlier}

    def _keep(self, seq: int, tensors: list[Tensor], given: set[int]) -> None:
        """Hold on to the outputs of a call; ``given`` are those that lie in its arguments."""
        self.kept[seq] = tensors
        self._extents[seq] = [extent(tensor) for o, tensor in enumerate(tensors) if o not in given]
        for place in self._extents[seq]:
            self._held.add(place)
        if sum(prod(_size(tensor)) * _dtype(tensor).itemsize for tensor in tensors) > KEEP_BYTES:
            self._large.append(seq)
        if len(self._large) > KEEP_CALLS:
            oldest = self._large.pop(0)
            del self.kept[oldest]
            for place in self._extents.pop(oldest):
                self._held.remove(place)

    def _copy_again(self, places: list[dict[str, Any]]) -> None:
        for again in places:
            kept = self.kept.get(again["seq"], [])
            if again["output"] < len(kept):
                self._copy(kept[again["output"]], again["at"], again["bytes"])

    def do_hold(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Many calls whose outputs all stay alive; the bytes of all are copied after the last. ``step`` bytes lie from
        one call's places to the next one's."""
        forward = self.modules[body["key"]][1]
        calls, step = range(body["calls"]), body["step"]
        inputs = [[self._view({**p, "at": p["at"] + n * step}) for p in body["inputs"]] for n in calls]
        self._poison([o["bytes"] for o in body["outputs"]], on=True)
        try:
            with _no_grad():
                made = [outputs_of(forward(*given)) for given in inputs]
        finally:
            self._poison([], on=False)
        extents = [(*extent(given), n) for n in calls for given in inputs[n]]
        for n in calls:
            for value, place in zip(made[n], body["outputs"], strict=False):
                if plain_tensor(value) is None and _device(value).type == self.device.type:
                    extents.append((*extent(value), n))
                    self._copy(value, place["at"] + n * step, place["bytes"])
        self._copy_again(body["again"])
        self._settle()
        for kept in (self.kept, self._extents, self._large):
            kept.clear()
        self._held = Extents()
        return {"shared": shared(extents)}

    def _collect(
        self, made: list[Any], places: list[dict[str, Any]], inputs: list[Tensor]
    ) -> tuple[list[dict[str, Any]], list[Tensor]]:
        described: list[dict[str, Any]] = []
        tensors: list[Tensor] = []
        for number, value in enumerate(made):
            problem = plain_tensor(value) or self._elsewhere(value, inputs)
            if problem:
                described.append({"problem": told(problem, MOST_TEXT), "foreign": not isinstance(value, Tensor)})
                continue
            shape, dtype = list(_size(value)), str(_dtype(value)).removeprefix("torch.")
            row: dict[str, Any] = {"shape": shape[:MOST_DIMENSIONS], "dtype": dtype, "device": _device(value).type}
            row["last_stride"] = last_stride(value)
            if number < len(places):
                place = places[number]
                fits = prod(shape) * _dtype(value).itemsize == place["bytes"]
                row["copied"] = fits and _device(value).type == self.device.type
                if row["copied"]:
                    self._copy(value, place["at"], place["bytes"])
            described.append(row)
            tensors.append(value)
        return described, tensors

    def _elsewhere(self, output: Tensor, inputs: list[Tensor]) -> str | None:
        """Why an output is in nobody's memory but the harness's, or None."""
        address = _address(output)
        held = prod(_size(output)) and any(arena.holds(address) for arena in self.arenas.values())
        if held and not any(overlap(output, given) for given in inputs):
            return "it lies in memory that the harness has for its own use"
        return None

    def _copy(self, tensor: Tensor, at: int, size: int, arena: str = "main") -> None:
        copy_bytes(tensor, self.arenas[arena].address(at, size), size)

    def _poison(self, sizes: list[int], *, on: bool) -> None:
        """Fill memory that the call is likely to get, so that what it does not write shows."""
        if self.device.type == "cpu":
            self._libc.mallopt(_M_PERTURB, _POISON ^ 0xFF if on else 0)
            return
        if on:
            blocks = [torch.empty(size, dtype=torch.uint8, device=self.device).fill_(0xFF) for size in sizes * 2]
            del blocks

    def _aliases(self, outputs: list[Tensor], inputs: list[Tensor]) -> list[list[int]]:
        """Pairs (output, input) whose memory overlaps."""
        found = []
        for o, output in enumerate(outputs):
            for i, given in enumerate(inputs):
                if overlap(output, given):
                    found.append([o, i])
        return found[:MOST_ALIASES]

    def do_state(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Copy parameters and buffers of a module to where ``places`` says, for the judge to compare."""
        module = self.modules[body["key"]][1]
        own: dict[str, Any] = getattr(module, "state_dict", dict)()
        copied = []
        for name, place in body["places"].items():
            if name in own and plain_tensor(own[name].detach()) is None:
                self._copy(own[name].detach(), place["at"], place["bytes"])
                copied.append(name)
        self._settle()
        return {"copied": copied}

    def do_try(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Whether one call can be captured, found out before anything is compared: work left on a side stream shows."""
        forward = self.modules[body["key"]][1]
        inputs = [self._view(place).clone() for place in body["inputs"]]
        with torch.cuda.device(self.device), _no_grad():
            try:
                graph, _ = capture(self.clock, lambda: forward(*inputs))
            except NotCapturable as error:
                self._settle()
                return {"capturable": False, "reason": str(error), "unjoined": error.unjoined}
            return {"capturable": True, "nodes": cudadrv.graph_content(graph.raw_cuda_graph()).nodes}

    # -- timing ----------------------------------------------------------------------------------------------------

    def do_time(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Prepare the case for timing: on a GPU weight copies, warm calls and one capture per seed."""
        self.drop(body["case"])
        if self.device.type == "cpu":
            self.do_eager(body, [])
            return {"capturable": False, "reason": "there is no GPU"}
        key, several = body["key"], body["copies"]
        copies, names = self._copies(key, several["moved"]), set(self.modules[key][0]["state"])
        arena, place, arguments = self._laid(body)
        with torch.cuda.device(self.device), _no_grad():
            # Every copy: what a module makes in its first call must not lie in the memory of one graph.
            self._call_each(copies, arena, place, arguments)
            weights = [] if key in self.unmoved else movable_weights(copies, names)
            self.origins += map(_detach, weights)
            timer = CaseTimer(
                *(self.clock, arena, place, arguments, copies), weights=weights, sampled=tuple(body["sampled"])
            )
            self.timers[body["case"]] = timer
            try:
                moving_shows = timer.moving_shows()
            except NotCapturable as error:
                return self._not_capturable(timer, error)
            if moving_shows:
                self.unmoved.add(key)
                self.origins += timer.moved
            if names and not timer.weights:
                # More copies, of which each layout picks its own, so that the addresses change all the same.
                timer.forwards = self._copies(key, several["unmoved"])
                self._call_each(timer.forwards, arena, place, arguments)
        return self.do_layouts(body, [])

    def do_layouts(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Capture the next layouts of a case, one per seed: the first ``plain`` and ``gates`` of all have these graphs,
        too. ``inspect``: say what the graphs hold.
        """
        timer = self.timers[body["case"]]
        layouts = []
        with torch.cuda.device(self.device), _no_grad():
            try:
                for seed, sample_seed in body["seeds"]:
                    number = len(timer.layouts)
                    plain, gate = number < body["plain"], number < body["gates"]
                    told = timer.add_layout(seed, sample_seed, plain=plain, gate=gate, inspect=body["inspect"])
                    layouts.append(told)
            except NotCapturable as error:
                return self._not_capturable(timer, error)
            finally:
                # Where it could be captured, nothing of the candidate's Python runs between here and the last turn.
                cudadrv.reset_persisting_l2()
        return {"capturable": True, "layouts": layouts}

    def _not_capturable(self, timer: CaseTimer, error: NotCapturable) -> dict[str, Any]:
        timer.drop()
        torch.cuda.synchronize()
        return {"capturable": False, "reason": str(error), "unjoined": error.unjoined}

    def _call_each(self, copies: list[Forward], arena: Arena, place: Place, arguments: list[Argument]) -> None:
        for forward in copies:
            forward(*(arena.tensor(place.pristine + a.offset, a.shape, a.dtype).clone() for a in arguments))

    def _laid(self, body: dict[str, Any]) -> tuple[Arena, Place, list[Argument]]:
        """Where the timed inputs of a case lie."""
        arguments = arguments_of(body)
        place = Place.at(body["pristine"], body["block"], body["calls"])
        return self.arenas[timing_arena(body["case"])], place, arguments

    def _copies(self, key: str, count: int) -> list[Forward]:
        """Modules with weights of their own, so that the weights of one call are not in cache for the next.

        A few will do where there are no weights: building one for each call, and calling each once, takes long where
        each compiles something. Nobody gets away with more by that: what a module remembers between its calls, or
        keeps in Python besides parameters and buffers, a global would share among any number of modules.
        """
        recipe, judged = self.modules[key]
        if not recipe["state"] and not holds_tensors(judged):
            count = min(count, _COPIES_WITHOUT_STATE)
        kept = self.copies.setdefault(key, [])
        gaps = []
        while len(kept) < count:
            # A gap of another size before each, so that they do not lie in one row of memory.
            gaps.append(torch.empty(random.randrange(1, 64) * 512, dtype=torch.uint8, device=self.device))
            kept.append(self._build(recipe))
        return kept[:count]

    def do_turn(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One turn on a GPU: see ``CaseTimer.turn``."""
        timer = self.timers[body["case"]]
        return timer.turn(
            body["layout"],
            body["kind"],
            body["prime"],
            body["timed"],
            fill=body.get("fill", False),
            fresh=body.get("fresh"),
        )

    def do_samples(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Show what the gates of a layout's last replay have sampled."""
        self.timers[body["case"]].show_samples(body["layout"])
        return {}

    def do_outputs(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Copy what one call of a replayed layout returned to where the results of its ``slot`` go."""
        outputs = self.timers[body["case"]].outputs_of_call(body["layout"], body["call"])
        to = body["results"]
        for value, place in zip(outputs, to["outputs"], strict=False):
            at = to["at"] + body["slot"] * to["block"] + place["at"]
            self._copy(value, at, place["bytes"], timing_arena(body["case"]))
        self._settle()
        return {}

    def do_eager(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Make the case ready for calls one by one, with the module that was judged, and call it once."""
        to = body["results"]
        results = Results(to["at"], to["block"], tuple((o["at"], o["bytes"]) for o in to["outputs"]))
        if self.device.type == "cpu":
            self._settle_heap(to["block"])
        case = self.eager[body["case"]] = EagerCase(self.modules[body["key"]][1], *self._laid(body), results)
        with _no_grad():
            case.turn([0], 1)
        return {}

    def _settle_heap(self, size: int) -> None:
        """Have the C library keep what it is given back, and give it some: otherwise a young process pays page faults
        for every large output, and a warm one none.
        """
        self._libc.mallopt(_M_MMAP_THRESHOLD, _HEAP_BLOCK)
        self._libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        blocks = [torch.empty(size, dtype=torch.uint8).fill_(0) for _ in range(_HEAP_BLOCKS) if size <= _HEAP_BLOCK]
        del blocks

    def do_loop(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Calls over the slots that ``order`` names; the parent's clock times the answer. See :class:`EagerCase`."""
        with _no_grad():
            # By the class: what lies here may be something else by now.
            made = EagerCase.turn(self.eager[body["case"]], body["order"], body["keep"], idle=body.get("idle", False))
        return {"made": made}

    def do_held(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """What shares memory among the last timed calls."""
        return EagerCase.held(self.eager[body["case"]])

    def _settle(self) -> None:
        if self.device.type == "cuda":
            _synchronize()

    def do_drop(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.drop(body["case"])
        arena = self.arenas.pop(timing_arena(body["case"]), None)
        if arena is not None:
            self._settle()
            arena.close()
        return {}

    def drop(self, case: str) -> None:
        """Give back what a case took for timing."""
        timer = self.timers.pop(case, None)
        if timer is not None:
            timer.drop()
        self.eager.pop(case, None)


def arguments_of(order: dict[str, Any]) -> list[Argument]:
    """Where a call's arguments lie in a block, by what a process is told of a case."""
    return [Argument(a["name"], a["at"], tuple(a["shape"]), DTYPES[a["dtype"]]) for a in order["arguments"]]


def timing_arena(case: str) -> str:
    """Name of the arena that holds a case's timing inputs."""
    return f"timing/{case}"
