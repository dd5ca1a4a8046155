"""What one layout captures, and in which order: gates and calls, with everything of CUDA replaced by a log."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fk_core.child import timing
from fk_core.child.capturing import sampled_of
from fk_core.child.kernels import flip_masks
from fk_core.child.refresh import Argument, refreshed, source_of
from fk_core.child.timing import CaseTimer, Place
from fk_core.records.claims import InspectedLayout, LayoutClaim

CALLS = 16
BLOCK = 256
ROW = 2 * timing.kernels.SAMPLES * 4
Log = list[tuple[Any, ...]]


class Graph:
    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name

    def raw_cuda_graph(self) -> int:
        return 0

    def raw_cuda_graph_exec(self) -> str:
        return self.name

    def instantiate(self) -> None:
        self.log.append(("instantiate", self.name))

    def replay(self) -> None:
        self.log.append(("replay", self.name))


class Stage:
    """A timer whose captures write down what they launch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: Log = []
        self.captures = self.capturing = 0
        """How many there were, and the number of the one that is under way, if any."""
        self.captured: dict[str, Log] = {}
        self.pools: dict[str, str | None] = {}
        self.held: dict[str, tuple[int, int]] = {}
        """How many of all outputs are alive when a capture begins, and when it ends."""
        self.made: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        stream = SimpleNamespace(cuda_stream=1, synchronize=lambda: self.log.append(("sync",)))
        self.clock: Any = SimpleNamespace(
            device=torch.device("cpu"),
            stream=stream,
            l2_bytes=1 << 20,
            events=[("begin", n) for n in range(8)],
            span=("first", "last"),
            flush=lambda stream: self.log.append(("flush",)),
            gates=[SimpleNamespace(launch=self.gate)],
            refresh=SimpleNamespace(launch=self.refresh),
        )
        monkeypatch.setattr(timing, "capture", self.capture)
        monkeypatch.setattr(timing, "_record", lambda event, stream: self.log.append(("record", event)))
        monkeypatch.setattr(timing, "_elapsed", lambda a, b: 0.5 if a == "first" else 0.25)
        content = timing.cudadrv.GraphContent({"kernel": 1}, 2)
        monkeypatch.setattr(timing.cudadrv, "graph_content", lambda graph: content)
        monkeypatch.setattr(timing.cudadrv, "upload", lambda graph, stream: self.log.append(("upload", graph)))
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(timing, "_synchronize", lambda: self.log.append(("settle",)))
        self.place = Place.at(0, BLOCK, CALLS)
        self.memory = torch.zeros(self.place.end, dtype=torch.uint8)
        for slot in range(CALLS):
            self.memory[slot * BLOCK : (slot + 1) * BLOCK] = slot
        arena: Any = SimpleNamespace(
            memory=SimpleNamespace(address=self.memory.data_ptr()),
            tensor=lambda at, shape, dtype: self.memory[at : at + prod(shape) * dtype.itemsize].view(dtype).view(shape),
        )
        self.arena = arena
        argument = Argument("x", 0, (BLOCK,), torch.uint8)
        self.forwards = [self.forward(copy) for copy in range(CALLS + CALLS // 2)]
        self.timer = CaseTimer(self.clock, arena, self.place, [argument], self.forwards)

    def forward(self, copy: int) -> Any:
        def called(x: torch.Tensor) -> torch.Tensor:
            self.log.append(("call", copy, x.data_ptr()))
            output = torch.zeros(BLOCK, dtype=torch.uint8)
            self.made.add(output)
            return output

        return called

    def gate(self, blocks: int, stream: int, *arguments: int) -> None:
        pristine, slot, words, y0, _, _, _, _, row = arguments
        value = ctypes.c_ubyte.from_address(pristine).value  # each slot is full of its number
        self.log.append(("gate", value, slot, words, y0, row))

    def refresh(self, grid: int, stream: int, source: int, target: int, *rest: int, rows: int) -> None:
        """What the kernel does, on the CPU."""
        count, block, signs, seed, start, of, shift = rest
        assert of == rows
        assert grid * timing.kernels.REFRESH_WORDS >= count
        for row in range(rows):
            given, to = (
                torch.frombuffer((ctypes.c_int32 * count).from_address(at + n * block * 4), dtype=torch.int32)
                for at, n in ((source, (row + shift) % rows), (target, row))
            )
            to.copy_(given ^ flip_masks(seed, start + row * block, count, signs, torch.device("cpu")))
        self.log.append(("refresh", seed))

    def capture(self, clock: Any, body: Any, pool_of: Any = None) -> tuple[Graph, Any]:
        before = len(self.made)
        self.log, self.captures, self.capturing = [], self.captures + 1, self.captures + 1
        result = body()
        self.capturing = 0
        kinds = {entry[0] for entry in self.log}
        name = "plain" if kinds == {"call"} else "gate" if kinds == {"gate"} else "full"
        self.captured[name], self.held[name] = self.log, (before, len(self.made))
        self.pools[name] = None if pool_of is None else pool_of.name
        self.log = []
        return Graph(self.log, name), result


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_gates_and_calls_alternate(stage: Stage) -> None:
    told = stage.timer.add_layout(5, 77, plain=True, gate=True, inspect=True)
    log, order = stage.captured["full"], told["order"]
    assert [entry[0] for entry in log] == ["gate", "call"] * told["calls"] + ["gate"]
    gates, calls = log[::2], log[1::2]
    assert [gate[1] for gate in gates[:-1]] == order
    for gate, call in zip(gates, calls, strict=False):
        assert gate[2] == call[2], "a gate writes the input of the call behind it"
        assert gate[3] == BLOCK // 4
    assert gates[-1][3] == 0, "the last gate samples only"
    rows = [(gate[5] - min(gate[5] for gate in gates)) // ROW for gate in gates]
    assert rows == [*order, order[0]]


def test_a_gate_samples_the_call_before_it(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=True, gate=True, inspect=True)
    outputs = [outs[0].data_ptr() for outs in stage.timer.layouts[0].outputs]
    for name in ("full", "gate"):
        gates = [entry for entry in stage.captured[name] if entry[0] == "gate"]
        assert [gate[4] for gate in gates[1:]] == outputs
        assert gates[0][4] == gates[0][2], "nothing is behind the first: it samples its own slot"
    same = [[entry for entry in stage.captured[name] if entry[0] == "gate"] for name in ("full", "gate")]
    assert same[0] == same[1], "both graphs have the same gates"


def test_weight_copies_come_not_again(stage: Stage) -> None:
    told = stage.timer.add_layout(5, 77, plain=True, gate=True, inspect=True)
    copies = [entry[1] for entry in stage.captured["full"] if entry[0] == "call"]
    assert len(set(copies)) == len(copies) == told["calls"]


@pytest.mark.parametrize("plain", [True, False])
def test_only_what_full_returned_is_kept(stage: Stage, plain: bool) -> None:
    calls = stage.timer.add_layout(5, 77, plain=plain, gate=True, inspect=True)["calls"]
    expected = {"full": (0, calls), "gate": (calls, calls)}
    assert stage.held == ({"plain": (0, calls)} if plain else {}) | expected
    assert list(stage.captured) == (["plain"] if plain else []) + ["full", "gate"]
    assert set(stage.timer.layouts[0].graphs) == set(stage.captured)
    assert len(stage.timer.layouts[0].outputs) == calls


def test_layouts_take_copies_of_the_gates_code_in_turn(stage: Stage) -> None:
    """All gates of a layout are of one copy: those that are timed alone, too."""
    used: list[tuple[int, int]] = []

    def copy(number: int) -> Any:
        def launch(*arguments: int) -> None:
            used.append((len(stage.timer.layouts), number))
            stage.gate(*arguments)

        return SimpleNamespace(launch=launch)

    stage.clock.gates = [copy(number) for number in range(3)]
    for seed in range(5):
        stage.timer.add_layout(seed, 77, plain=True, gate=True, inspect=False)
    assert list(dict.fromkeys(used)) == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)]


@pytest.mark.parametrize("plain", [True, False])
def test_the_graphs_of_a_layout_share_a_pool(stage: Stage, plain: bool) -> None:
    stage.timer.add_layout(5, 77, plain=plain, gate=True, inspect=True)
    expected = {"full": "plain" if plain else None, "gate": "full"}
    assert stage.pools == ({"plain": None} if plain else {}) | expected


def test_plain_calls_are_those_of_full(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=True, gate=True, inspect=True)
    assert stage.captured["plain"] == [entry for entry in stage.captured["full"] if entry[0] == "call"]


def test_the_slots_of_plain_calls_are_filled(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=True, gate=True, inspect=True)
    layout = stage.timer.layouts[0]
    for slot, start in enumerate(layout.starts):
        assert layout.memory[start : start + BLOCK].eq(slot).all()


def test_arguments_lie_in_the_slots_of_their_calls(stage: Stage) -> None:
    timer = stage.timer
    timer.add_layout(5, 77, plain=False, gate=True, inspect=True)
    layout = timer.layouts[0]
    layout.memory.copy_(torch.arange(len(layout.memory)) % 251)
    timer.arguments = [
        Argument("x", 0, (3, 5), torch.int16),
        Argument("none", 32, (0, 4), torch.int32),
        Argument("one", 64, (), torch.int32),
        Argument("y", 128, (2, 4, 2), torch.int64),
    ]
    for slot, view in zip(layout.order, timer._views(layout), strict=True):
        assert list(view) == ["x", "none", "one", "y"]
        for a in timer.arguments:
            given, start = view[a.name], layout.starts[slot] + a.offset
            raw = layout.memory[start : start + given.numel() * a.dtype.itemsize]
            assert (given.shape, given.dtype) == (a.shape, a.dtype)
            assert given.is_contiguous()
            assert torch.equal(given, raw.view(a.dtype).view(a.shape))
            assert given.numel() == 0 or given.data_ptr() == raw.data_ptr()


def test_two_outputs_are_sampled_at_most() -> None:
    outputs = [torch.zeros(8), torch.zeros(6, dtype=torch.int16), torch.zeros(2)]
    first, second = outputs[0].data_ptr(), outputs[1].data_ptr()
    assert sampled_of(outputs) == sampled_of(outputs[:2]) == (first, second, 8, 3)
    assert sampled_of(outputs[:1]) == (first, first, 8, 8)
    assert sampled_of([]) is None


def test_what_a_graph_holds_is_told_where_it_is_asked_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    told = stage.timer.add_layout(5, 77, plain=False, gate=True, inspect=True)
    InspectedLayout.model_validate(told)
    assert (told["nodes"], told["programmatic"]) == ({"kernel": 1}, 2)
    monkeypatch.delattr(timing.cudadrv, "graph_content")
    short = stage.timer.add_layout(5, 77, plain=False, gate=True, inspect=False)
    LayoutClaim.model_validate(short)
    assert short == {"calls": told["calls"], "order": told["order"]}


@pytest.mark.parametrize(
    ("kind", "flushed"), [("full", ["flush"]), ("gate", ["flush"]), ("plain", ["flush"]), ("warm", [])]
)
def test_a_turn(stage: Stage, kind: str, flushed: list[str]) -> None:
    told = stage.timer.add_layout(5, 77, plain=True, gate=True, inspect=True)
    log = stage.log = []
    for graph in stage.timer.layouts[0].graphs.values():
        graph.log = log
    answer = stage.timer.turn(0, kind, 1, 2)
    name = "plain" if kind == "warm" else kind
    assert answer == {f"{name}_us": [250.0, 250.0], "calls": told["calls"]}
    primed, timed = [*flushed, "replay"], [*flushed, "record", "replay", "record"] * 2
    assert [entry[0] for entry in log] == [*primed, *timed, "sync"]
    assert {entry[1] for entry in log if entry[0] == "replay"} == {name}


def test_gates_alone_only_where_they_are_asked_for(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=False, gate=False, inspect=True)
    assert list(stage.captured) == list(stage.timer.layouts[0].graphs) == ["full"]


# -- what each layout has of its own -----------------------------------------------------------------------------------


def addresses(stage: Stage, graph: str = "full") -> dict[str, set[int]]:
    gates = [entry for entry in stage.captured[graph] if entry[0] == "gate"]
    return {"rows": {gate[5] for gate in gates}, "slots": {gate[2] for gate in gates}}


@pytest.mark.parametrize("large", [False, True])
def test_layouts_share_no_memory(stage: Stage, large: bool) -> None:
    """Nor has one of them anything in the arena, which is the same for all: a replay of another layout would change
    what the gates of this one have sampled."""
    if large:
        stage.clock.l2_bytes = BLOCK
        stage.timer = CaseTimer(*(stage.clock, stage.arena, stage.place, stage.timer.arguments, stage.forwards))
    arena = range(stage.memory.data_ptr(), stage.memory.data_ptr() + len(stage.memory))
    seen: dict[str, set[int]] = {"rows": set(), "slots": set()}
    for seed in range(3):
        stage.timer.add_layout(seed, 77, plain=False, gate=False, inspect=False)
        for what, found in addresses(stage).items():
            assert not found & seen[what]
            assert not [at for at in found if at in arena]
            seen[what] |= found


@pytest.mark.parametrize("large", [False, True])
def test_every_replay_has_inputs_of_its_own(stage: Stage, large: bool) -> None:
    """What follows is what the judge works out, also where the judge has drawn new inputs since the capture."""
    if large:
        stage.clock.l2_bytes = BLOCK
    arguments = [
        Argument("x", 0, (3, 11), torch.bfloat16),
        Argument("ids", 96, (4,), torch.int32),
        Argument("y", 128, (19,), torch.float32),
    ]
    generator = torch.Generator().manual_seed(3)
    stage.memory[: stage.place.samples] = torch.randint(0, 256, (stage.place.samples,), generator=generator).to(
        torch.uint8
    )
    stage.timer = CaseTimer(*(stage.clock, stage.arena, stage.place, arguments, stage.forwards))
    stage.timer.forwards = [lambda *given: torch.zeros(BLOCK, dtype=torch.uint8)] * CALLS
    stage.timer.add_layout(5, 77, plain=True, gate=False, inspect=False)
    layout = stage.timer.layouts[0]
    stage.memory[: stage.place.samples] = torch.randint(0, 256, (stage.place.samples,), generator=generator).to(
        torch.uint8
    )
    log = stage.log = layout.graphs["full"].log = []
    stage.timer.turn(0, "full", 1, 2, fresh=40)
    # Two regions of x, two of y, one of the integers.
    parts = 5 * (layout.calls if large else 1)
    timed = [*["refresh"] * parts, "flush", "record", "replay", "record"]
    primed = ["flush", "replay"]
    assert [entry[0] for entry in log] == [
        *primed,
        *timed * 2,
        "sync",
    ]
    assert [seed for name, *(seed,) in [e for e in log if e[0] == "refresh"]][::parts] == [40, 41]

    def values(block: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            a.name: block[a.offset : a.offset + a.dtype.itemsize * int(torch.tensor(a.shape).prod())]
            .view(a.dtype)
            .view(a.shape)
            for a in arguments
        }

    flipped = 0
    for slot, start in enumerate(layout.starts):
        source = source_of(slot, layout.calls, 41)
        base = stage.memory[source * BLOCK : (source + 1) * BLOCK]
        if large:
            found = layout.memory[start : start + BLOCK]
        else:
            assert layout.pristine is not None
            found = layout.pristine[slot * BLOCK : (slot + 1) * BLOCK]
        expected = refreshed(values(base), arguments, BLOCK, slot, 41)
        for name, value in values(found).items():
            assert torch.equal(value.view(torch.uint8), expected[name].view(torch.uint8)), (slot, name)
        flipped += int((values(found)["x"].view(torch.int16) != values(base)["x"].view(torch.int16)).sum())
        for begin, end in ((64, 112), (192, 204)):
            assert torch.equal(found[begin:end], base[begin:end]), (
                "integers and the last values have the signs they had"
            )
    assert 0.3 < flipped / (layout.calls * 32) < 0.7


def test_an_audit_sees_new_inputs_and_shows_its_samples(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=False, gate=False, inspect=False)
    layout = stage.timer.layouts[0]
    assert layout.pristine is not None
    stage.memory[: stage.place.samples] = 99
    layout.samples.fill_(7)
    stage.log = layout.graphs["full"].log = []
    stage.timer.turn(0, "full", 0, 1)
    assert layout.pristine.ne(99).all(), "a turn that is timed has what was captured"
    assert stage.memory[stage.place.samples :].eq(0).all()
    stage.timer.turn(0, "full", 0, 1, fill=True)
    assert layout.pristine.eq(99).all()
    assert stage.memory[stage.place.samples :][: layout.calls * ROW].eq(7).all()
    assert stage.log[-1] == ("settle",), "the judge reads it in another process"


def test_a_call_allocates_elsewhere_each_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it frees again would otherwise lie in one place for all calls of a layout."""
    sizes: list[int] = []
    real = timing._empty

    def empty(size: int, **more: Any) -> torch.Tensor:
        sizes.append(size)
        made: torch.Tensor = real(size, **more)
        return made

    monkeypatch.setattr(timing, "_empty", empty)
    calls = stage.timer.add_layout(5, 77, plain=False, gate=True, inspect=False)["calls"]
    holes = sizes[-calls:]
    assert len(set(holes)) > 3
    assert all(size % 512 == 0 and 0 < size < 8 * 512 for size in holes)


# -- weights -----------------------------------------------------------------------------------------------------------


class Weighted:
    """A module over one weight; ``packs``: it keeps a copy of the weight, made anew when that has moved."""

    def __init__(self, stage: Stage, number: int, *, packs: bool) -> None:
        self.stage, self.packs = stage, packs
        self.weight = torch.nn.Parameter(torch.full((6,), float(number)), requires_grad=False)
        self.of = self.weight.data_ptr()
        self.packed_in = 0
        """The capture in which it packed, or 0 for none: what it packed there is not computed before a replay."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packs and self.of != self.weight.data_ptr():
            self.of, self.packed_in = self.weight.data_ptr(), self.stage.capturing
            self.stage.log.append(("pack",))
        self.stage.log.append(("call", self.weight.data_ptr(), x.data_ptr()))
        return torch.zeros(BLOCK, dtype=torch.uint8)


def weighted(stage: Stage, monkeypatch: pytest.MonkeyPatch, *, packs: bool) -> list[Weighted]:
    """Give the stage's timer modules with weights, and let a graph say how much it holds."""
    modules = [Weighted(stage, n, packs=packs) for n in range(CALLS + CALLS // 2)]
    stage.timer = CaseTimer(
        *(stage.clock, stage.arena, stage.place, stage.timer.arguments, modules),
        weights=[m.weight for m in modules],
    )
    held: list[int] = []

    class Counted(Graph):
        def raw_cuda_graph(self) -> int:
            return held[-1]

    def capture(clock: Any, body: Any, pool_of: Any = None) -> tuple[Graph, Any]:
        _, result = stage.capture(clock, body, pool_of)
        held.append(len(next(reversed(stage.captured.values()))))
        return Counted([], "graph"), result

    monkeypatch.setattr(timing, "capture", capture)
    monkeypatch.setattr(
        timing.cudadrv, "graph_content", lambda graph: timing.cudadrv.GraphContent({"kernel": graph}, 0)
    )
    return modules


def test_weights_lie_elsewhere_in_each_layout(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = weighted(stage, monkeypatch, packs=False)
    assert not stage.timer.moving_shows()
    seen: set[int] = set()
    for seed in range(3):
        stage.timer.add_layout(seed, 77, plain=True, gate=False, inspect=False)
        at = {entry[1] for entry in stage.captured["full"] if entry[0] == "call"}
        assert at == {entry[1] for entry in stage.captured["plain"]}
        assert not at & seen, "memory that an earlier layout reads is not used again"
        seen |= at
        assert [m.weight.tolist() for m in modules] == [[float(n)] * 6 for n in range(len(modules))]
    assert all(at % 16 == 0 for at in seen)


def test_a_module_that_packs_its_weights_by_address_keeps_them(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would pack them in the middle of a capture, into memory of the graph's."""
    modules = weighted(stage, monkeypatch, packs=True)
    assert stage.timer.moving_shows()
    for module in modules:
        module(torch.zeros(1))
    assert not [m for m in modules if m.packed_in], "what was packed in the look at one module is not used"
    for seed in range(2):
        stage.timer.add_layout(seed, 77, plain=True, gate=False, inspect=False)
        assert {entry[0] for entry in stage.captured["full"]} == {"gate", "call"}


def test_many_bytes_of_weights_are_not_moved(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MOVED_BYTES", 600)
    given = (stage.clock, stage.arena, stage.place, stage.timer.arguments, stage.forwards)
    few, many = ([torch.zeros(size, dtype=torch.uint8) for size in (300, last)] for last in (300, 301))
    assert CaseTimer(*given, weights=few).weights == few
    timer = CaseTimer(*given, weights=many)
    assert not timer.weights
    assert not timer.moving_shows()
