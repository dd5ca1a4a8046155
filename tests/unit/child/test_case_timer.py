"""What one layout captures, and in which order: gates and calls, with everything of CUDA replaced by a log."""

from __future__ import annotations

import contextlib
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fk_core.child import timing
from fk_core.child.timing import Argument, CaseTimer, Place, sampled_of
from fk_core.records.claims import InspectedLayout, LayoutClaim

CALLS = 16
BLOCK = 256
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
            gate=SimpleNamespace(launch=self.gate),
        )
        monkeypatch.setattr(timing, "capture", self.capture)
        monkeypatch.setattr(timing, "_record", lambda event, stream: self.log.append(("record", event)))
        monkeypatch.setattr(timing, "_elapsed", lambda a, b: 0.5 if a == "first" else 0.25)
        content = timing.cudadrv.GraphContent({"kernel": 1}, 2)
        monkeypatch.setattr(timing.cudadrv, "graph_content", lambda graph: content)
        monkeypatch.setattr(timing.cudadrv, "upload", lambda graph, stream: self.log.append(("upload", graph)))
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        arena: Any = SimpleNamespace(
            memory=SimpleNamespace(address=0),
            tensor=lambda at, shape, dtype: torch.full(shape, at // BLOCK, dtype=torch.uint8),
        )
        self.place = Place.at(0, BLOCK, CALLS)
        argument = Argument("x", 0, (BLOCK,), torch.uint8)
        forwards = [self.forward(copy) for copy in range(CALLS + CALLS // 2)]
        self.timer = CaseTimer(self.clock, arena, self.place, [argument], forwards)

    def forward(self, copy: int) -> Any:
        def called(x: torch.Tensor) -> torch.Tensor:
            self.log.append(("call", copy, x.data_ptr()))
            output = torch.zeros(BLOCK, dtype=torch.uint8)
            self.made.add(output)
            return output

        return called

    def gate(self, blocks: int, stream: int, *arguments: int) -> None:
        pristine, slot, words, y0, _, _, _, _, row = arguments
        self.log.append(("gate", pristine // BLOCK, slot, words, y0, row))

    def capture(self, clock: Any, body: Any, pool_of: Any = None) -> tuple[Graph, Any]:
        before = len(self.made)
        self.log = []
        result = body()
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
    told = stage.timer.add_layout(5, 77, plain=True, inspect=True)
    log, order = stage.captured["full"], told["order"]
    assert [entry[0] for entry in log] == ["gate", "call"] * told["calls"] + ["gate"]
    gates, calls = log[::2], log[1::2]
    assert [gate[1] for gate in gates[:-1]] == order
    for gate, call in zip(gates, calls, strict=False):
        assert gate[2] == call[2], "a gate writes the input of the call behind it"
        assert gate[3] == BLOCK // 4
    assert gates[-1][3] == 0, "the last gate samples only"
    samples = [(gate[5] - stage.place.samples) // (2 * timing.kernels.SAMPLES * 4) for gate in gates]
    assert samples == [*order, order[0]]


def test_a_gate_samples_the_call_before_it(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=True, inspect=True)
    outputs = [outs[0].data_ptr() for outs in stage.timer.layouts[0].outputs]
    for name in ("full", "gate"):
        gates = [entry for entry in stage.captured[name] if entry[0] == "gate"]
        assert [gate[4] for gate in gates[1:]] == outputs
        assert gates[0][4] == gates[0][2], "nothing is behind the first: it samples its own slot"
    same = [[entry for entry in stage.captured[name] if entry[0] == "gate"] for name in ("full", "gate")]
    assert same[0] == same[1], "both graphs have the same gates"


def test_weight_copies_come_not_again(stage: Stage) -> None:
    told = stage.timer.add_layout(5, 77, plain=True, inspect=True)
    copies = [entry[1] for entry in stage.captured["full"] if entry[0] == "call"]
    assert len(set(copies)) == len(copies) == told["calls"]


@pytest.mark.parametrize("plain", [True, False])
def test_only_what_full_returned_is_kept(stage: Stage, plain: bool) -> None:
    calls = stage.timer.add_layout(5, 77, plain=plain, inspect=True)["calls"]
    expected = {"full": (0, calls), "gate": (calls, calls)}
    assert stage.held == ({"plain": (0, calls)} if plain else {}) | expected
    assert list(stage.captured) == (["plain"] if plain else []) + ["full", "gate"]
    assert set(stage.timer.layouts[0].graphs) == set(stage.captured)
    assert len(stage.timer.layouts[0].outputs) == calls


@pytest.mark.parametrize("plain", [True, False])
def test_the_graphs_of_a_layout_share_a_pool(stage: Stage, plain: bool) -> None:
    stage.timer.add_layout(5, 77, plain=plain, inspect=True)
    expected = {"full": "plain" if plain else None, "gate": "full"}
    assert stage.pools == ({"plain": None} if plain else {}) | expected


def test_plain_calls_are_those_of_full(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=True, inspect=True)
    assert stage.captured["plain"] == [entry for entry in stage.captured["full"] if entry[0] == "call"]


def test_the_slots_of_plain_calls_are_filled(stage: Stage) -> None:
    stage.timer.add_layout(5, 77, plain=True, inspect=True)
    layout = stage.timer.layouts[0]
    for slot, start in enumerate(layout.starts):
        assert layout.memory[start : start + BLOCK].eq(slot).all()


def test_arguments_lie_in_the_slots_of_their_calls(stage: Stage) -> None:
    timer = stage.timer
    timer.add_layout(5, 77, plain=False, inspect=True)
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
    told = stage.timer.add_layout(5, 77, plain=False, inspect=True)
    InspectedLayout.model_validate(told)
    assert (told["nodes"], told["programmatic"]) == ({"kernel": 1}, 2)
    monkeypatch.delattr(timing.cudadrv, "graph_content")
    short = stage.timer.add_layout(5, 77, plain=False, inspect=False)
    LayoutClaim.model_validate(short)
    assert short == {"calls": told["calls"], "order": told["order"]}


def test_a_turn(stage: Stage) -> None:
    told = stage.timer.add_layout(5, 77, plain=True, inspect=True)
    log = stage.log = []
    for graph in stage.timer.layouts[0].graphs.values():
        graph.log = log
    answer = stage.timer.turn(0, "gated", 1, 2)
    assert answer["full_us"] == answer["gate_us"] == [250.0, 250.0]
    assert (answer["span_us"], answer["calls"]) == (500.0, told["calls"])
    primed, timed = ["flush", "replay"] * 2, ["flush", "record", "replay", "record"] * 4
    assert [entry[0] for entry in log] == ["record", *primed, *timed, "record", "sync"]
    assert [entry[1] for entry in log if entry[0] == "replay"] == ["full", "gate"] * 3
