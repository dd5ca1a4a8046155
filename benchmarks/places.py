"""Whether the readings of a short call differ by more than its layouts do: on a GPU, `python -m benchmarks.places`.

Makes several timers of the same call, each with layouts of its own, and reads all layouts in random order. If a timer's
layouts had nothing in common but the code, the means of timers would differ by the standard deviation of layouts over
the root of their number (`expected`); what they differ by beyond that (`seen`) is an error that all rounds of a
validation share, and that its interval does not cover.

    as it is         layouts as a validation has them, with the same inputs in all replays
    weights stay     all layouts of a timer read the same copies of the weights
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch

from fk_core.child import timing
from fk_core.child.arena import ALIGN, DeviceArena
from fk_core.child.capturing import DeviceClock
from fk_core.child.refresh import Argument
from fk_core.child.timing import CaseTimer, Place

LAYOUTS, CALLS, GATES = 8, 80, 2
VARIANTS: dict[str, dict[str, int]] = {
    "as it is": {},
    "weights stay": {"MOVED_BYTES": 0},
}
"""Changes to ``fk_core.child.timing``."""


class Norm(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width, device="cuda").bfloat16(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


CASES: dict[str, tuple[tuple[int, int], Callable[[], Any]]] = {
    "rms_norm 1 x 2880": ((1, 2880), lambda: Norm(2880)),
    "rms_norm 64 x 2880": ((64, 2880), lambda: Norm(2880)),
    "softmax 64 x 4": ((64, 4), lambda: softmax),
}


def make(clock: DeviceClock, shape: tuple[int, int], module: Callable[[], Any], seed: int) -> CaseTimer:
    block = -(-math.prod(shape) * 2 // ALIGN) * ALIGN
    place = Place.at(0, block, CALLS)
    arena = DeviceArena.create(place.end, 0)
    arena.tensor(0, (block * CALLS // 2,), torch.bfloat16).normal_()
    forwards = [module() for _ in range(CALLS)]
    for forward in forwards:
        forward(torch.zeros(shape, device="cuda").bfloat16())
    weights = [forward.weight for forward in forwards if isinstance(forward, Norm)]
    timer = CaseTimer(clock, arena, place, [Argument("x", 0, shape, torch.bfloat16)], forwards, weights=weights)
    for number in range(LAYOUTS):
        timer.add_layout(seed + number, seed + number, plain=False, gate=number < GATES, inspect=False)
    return timer


def read(timers: list[CaseTimer], rounds: int, rng: random.Random) -> list[list[float]]:
    """Nanoseconds of a call, by timer and layout: means of so many turns."""
    gates = [timer.turn(n, "gate", 1, 2) for timer in timers for n in range(GATES) for _ in range(rounds)]
    gate = statistics.median(us / (turn["calls"] + 1) for turn in gates for us in turn["gate_us"])
    taken: dict[tuple[int, int], list[float]] = {}
    for _ in range(rounds):
        cells = [(t, n) for t in range(len(timers)) for n in range(LAYOUTS)]
        for t, n in rng.sample(cells, len(cells)):
            turn = timers[t].turn(n, "full", 1, 2)
            op = (statistics.fmean(turn["full_us"]) - (turn["calls"] + 1) * gate) / turn["calls"]
            taken.setdefault((t, n), []).append(1e3 * op)
    return [[statistics.fmean(taken[t, n]) for n in range(LAYOUTS)] for t in range(len(timers))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this needs a GPU: it asks where in its memory things lie")
    clock, rng = DeviceClock(torch.device("cuda", 0)), random.Random(1)
    usual = {name: getattr(timing, name) for change in VARIANTS.values() for name in change}
    print(f"{'call':20s} {'variant':20s} {'ns':>7s} {'layouts':>8s} {'expected':>9s} {'seen':>6s}")
    with torch.no_grad():
        for case, (shape, module) in CASES.items():
            for variant, change in VARIANTS.items():
                for name, value in (usual | change).items():
                    setattr(timing, name, value)
                timers = [make(clock, shape, module, 1000 * number) for number in range(options.timers)]
                readings = read(timers, options.rounds, rng)
                spread = math.sqrt(statistics.fmean(statistics.variance(row) for row in readings))
                means = [statistics.fmean(row) for row in readings]
                expected, seen = spread / math.sqrt(LAYOUTS), statistics.stdev(means)
                middle = statistics.fmean(means)
                print(f"{case:20s} {variant:20s} {middle:7.0f} {spread:8.1f} {expected:9.1f} {seen:6.1f}", flush=True)


if __name__ == "__main__":
    main()
