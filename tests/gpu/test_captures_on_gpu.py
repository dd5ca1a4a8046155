"""Captures that fail leave the process as it was; of captures that share a pool, the later uses the memory again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fk_core.child.timing import DeviceClock, NotCapturable, capture

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
