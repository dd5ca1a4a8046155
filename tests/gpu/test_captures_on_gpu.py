"""Captures that fail leave the process as it was; of captures that share a pool, the later uses the memory again;
layouts that lie elsewhere compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fk_core.child.arena import DeviceArena
from fk_core.child.capturing import DeviceClock, NotCapturable, capture
from fk_core.child.kernels import SAMPLES, positions
from fk_core.child.refresh import Argument, refreshed, source_of
from fk_core.child.timing import CaseTimer, Place
from fk_core.child.weights import movable_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def clock() -> DeviceClock:
    return DeviceClock(torch.device("cuda", 0))


def syncs() -> None:
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").sum().item()


def raises() -> None:
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
    raise ValueError("no")


def leaves_a_stream() -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").fill_(1)


@pytest.mark.parametrize("body", [syncs, raises, leaves_a_stream])
def test_a_failed_capture_leaves_nothing(clock: DeviceClock, body: Callable[[], Any]) -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(5):
        with pytest.raises(NotCapturable):
            capture(clock, body)
        torch.cuda.synchronize()
        assert torch.randn(8, device="cuda").isfinite().all(), "the default generator is out of the capture"
        held = torch.full((1024,), 3.0, device="cuda")
        graph, out = capture(clock, lambda held=held: held * 2)
        graph.instantiate()
        graph.replay()
        torch.cuda.synchronize()
        assert out.eq(6).all()
        del graph, out, held
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 4 * MIB


def test_what_a_capture_let_go_is_used_by_the_next(clock: DeviceClock) -> None:
    given = torch.full((MIB // 4,), 3.0, device="cuda")
    first, out = capture(clock, lambda: [given * 2 for _ in range(8)])
    places = [tensor.data_ptr() for tensor in out]
    assert len(set(places)) == 8, "no call of a capture takes the memory of another's output"
    del out
    reserved = torch.cuda.memory_reserved()
    second, out = capture(clock, lambda: [given * 5 for _ in range(8)], first)
    assert torch.cuda.memory_reserved() == reserved
    assert sorted(tensor.data_ptr() for tensor in out) == sorted(places)
    for graph in (first, second):
        graph.instantiate()
    for graph, expected in ((second, 15), (first, 6), (second, 15)):
        graph.replay()
        torch.cuda.synchronize()
        assert all(tensor.eq(expected).all() for tensor in out)


# -- where things lie --------------------------------------------------------------------------------------------------

WIDTH, CALLS = 1024, 24
BYTES = WIDTH * 2


class Norm(torch.nn.Module):
    """Scales by a weight; ``packs``: by a copy of it that is made anew when the weight lies elsewhere."""

    def __init__(self, *, packs: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, device="cuda").bfloat16(), requires_grad=False)
        self.packs, self.of, self.packed = packs, 0, self.weight.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.packs and self.of != self.weight.data_ptr():
            self.of, self.packed = self.weight.data_ptr(), self.weight.detach().clone()
        return x * (self.packed if self.packs else self.weight)


@pytest.mark.parametrize("packs", [False, True])
def test_layouts_that_lie_elsewhere_compute_the_same(clock: DeviceClock, packs: bool) -> None:
    """Weights are moved for each layout, inputs and samples are its own: what an audit sees is right all the same."""
    place = Place.at(0, BYTES, CALLS)
    arena = DeviceArena.create(place.end, 0)
    modules = [Norm(packs=packs) for _ in range(CALLS + 8)]
    weights = [module.weight.detach().clone() for module in modules]
    argument = Argument("x", 0, (1, WIDTH), torch.bfloat16)
    with torch.no_grad():
        for module in modules:
            module(torch.zeros(1, WIDTH, device="cuda").bfloat16())
        timer = CaseTimer(
            clock, arena, place, [argument], list(modules), weights=movable_weights(list(modules), {"weight"})
        )
        assert len(timer.weights) == len(modules)
        assert timer.moving_shows() is packs
        for module in modules:
            module(torch.zeros(1, WIDTH, device="cuda").bfloat16())
        places = []
        for number in range(3):
            timer.add_layout(number, 7, plain=True, gate=number == 0, inspect=False)
            places.append({module.weight.data_ptr() for module in modules})
    assert (places[0] == places[1]) is packs
    assert all(torch.equal(m.weight, weight) for m, weight in zip(modules, weights, strict=True))
    for number, layout in enumerate(timer.layouts):
        new = torch.randn(CALLS, 1, WIDTH, device="cuda").bfloat16()
        arena.tensor(0, (CALLS, 1, WIDTH), torch.bfloat16).copy_(new)
        timer.turn(number, "plain", 1, 2)
        timer.turn(number, "full", 0, 1, fill=True)
        samples = arena.tensor(place.samples, (CALLS, 2, SAMPLES), torch.int32)
        for call, slot in enumerate(layout.order):
            (output,) = timer.outputs_of_call(number, call)
            assert any(torch.equal(output, new[slot] * weight) for weight in weights)
            # The gate behind a call writes the next one's inputs, and what it samples to the row of that one's slot.
            row = layout.order[(call + 1) % layout.calls]
            words = output.flatten().view(torch.int32)
            assert torch.equal(samples[row, 0], words[torch.tensor(positions(7 + row, len(words)), device="cuda")])
    assert timer.turn(0, "gate", 1, 2)["gate_us"][0] < timer.turn(0, "full", 1, 2)["full_us"][0]


@pytest.mark.parametrize("rows", [1, 24 << 10])
def test_every_replay_has_inputs_of_its_own(clock: DeviceClock, rows: int) -> None:
    """As the judge works them out; those of a large case are written where its calls read them."""
    size, calls = rows * BYTES, 3
    place = Place.at(0, size, calls)
    arena = DeviceArena.create(place.end, 0)
    base = torch.randn(calls, rows, WIDTH, device="cuda").bfloat16()
    arena.tensor(0, base.shape, torch.bfloat16).copy_(base)
    argument = Argument("x", 0, (rows, WIDTH), torch.bfloat16)
    timer = CaseTimer(clock, arena, place, [argument], [torch.neg])
    assert timer.gate_copies is (rows == 1)
    torch.neg(base[0])
    for number in range(2):
        timer.add_layout(number, 7, plain=True, gate=False, inspect=False)
    seen = []
    for fresh in (5, 899):
        timer.turn(0, "full", 1, 2, fresh=fresh)
        words = timer.outputs_of_call(0, 0)[0].flatten().view(torch.int32)
        row = timer.layouts[0].order[1 % timer.layouts[0].calls]
        wanted = words[torch.tensor(positions(7 + row, len(words)), device="cuda")]
        timer.turn(1, "full", 1, 2, fresh=fresh)
        timer.show_samples(0)
        assert torch.equal(arena.tensor(place.samples, (calls, 2, SAMPLES), torch.int32)[row, 0], wanted)
        timer.turn(0, "full", 1, 2, fresh=fresh)
        for call, slot in enumerate(timer.layouts[0].order):
            source = source_of(slot, timer.layouts[0].calls, fresh + 1)
            given = refreshed({"x": base[source]}, [argument], size, slot, fresh + 1)["x"]
            (output,) = timer.outputs_of_call(0, call)
            assert torch.equal(output, -given)
        seen.append(timer.outputs_of_call(0, 0)[0].clone())
    assert 0.4 < seen[0].ne(seen[1]).double().mean() < 0.6
