"""Captures that fail leave the process as it was; events inside a graph are read after its replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fk_core.child import cudadrv
from fk_core.child.timing import DeviceClock, NotCapturable, _external, capture

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


def test_events_inside_a_graph(clock: DeviceClock) -> None:
    """Of three equal parts, the events stand around the last two."""
    begin, end = _external(), _external()
    x = torch.ones(256 * MIB // 4, device="cuda")

    def body() -> None:
        for n in range(3):
            if n == 1:
                torch.cuda.Event.record(begin, clock.stream)
            for _ in range(10):
                x.mul_(1.0)
        torch.cuda.Event.record(end, clock.stream)

    graph, _ = capture(clock, body)
    assert cudadrv.graph_nodes(graph.raw_cuda_graph()) == {"kernel": 30, "event_record": 2}
    graph.instantiate()
    outer = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    shares = []
    for _ in range(5):
        with torch.cuda.stream(clock.stream):
            outer[0].record()
            graph.replay()
            outer[1].record()
            clock.stream.synchronize()
        shares.append(begin.elapsed_time(end) / outer[0].elapsed_time(outer[1]))
    assert sorted(shares)[2] == pytest.approx(2 / 3, abs=0.03)
