"""What the judge makes of the samples that gates took of timed calls, on the CPU with replays made by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.audits import _stale
from fk_core.child.arena import Arena
from fk_core.child.eager_ops import EAGER
from fk_core.child.kernels import SAMPLES, positions
from fk_core.child.refresh import refreshed, source_of
from fk_core.child.runner import Runner, arguments_of
from tests.judge.court import CATALOG, Court, Forward, case_of

SEED = 77
ORDER = [2, 0, 3, 1]


class Captured:
    """A timer with one layout."""

    layouts = (SimpleNamespace(order=ORDER),)

    def drop(self) -> None:
        pass


class Replaying:
    """A runner whose turns are replays made by hand."""

    def __init__(self, runner: Runner, replay: Replay) -> None:
        self.runner, self.by_hand = runner, replay

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def do_turn(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        made = self.by_hand
        return made.replay("ours", made.right, timed(made, made.right, body["fresh"]) if "fresh" in body else None)

    def do_samples(self, body: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {}


class Replay:
    """One case laid out for timing, whose replays leave in the arenas what gates would have sampled."""

    def __init__(self, op: str, form: str) -> None:
        spec = CATALOG.get(op)
        self.case = case_of(spec, form)
        self.court = Court(op, cases=[self.case])
        self.desk = self.court.job.timing
        opened = self.desk.open_case(self.case.id, 2, 100.0, 40)
        for fd in opened["fds"]:
            os.close(fd)
        self.laid = self.desk.cases[self.case.id]
        call = self.laid["call"]
        self.right: Forward = EAGER[op, self.case.entry](call.init, self.court.job.states[self.laid["key"]])
        self.court.job.runner.timers[self.case.id] = Captured()  # type: ignore[assignment]
        self.court.job.runner = Replaying(self.court.job.runner, self)  # type: ignore[assignment]

    def results(self, forward: Forward) -> list[list[Tensor]]:
        """Outputs of a call on each slot, as its inputs are now."""
        made = []
        for slot in range(len(ORDER)):
            result = forward(*self.laid["fill"].slot(slot).values())
            made.append(list(result) if isinstance(result, tuple) else [result])
        return made

    def replay(self, side: str, forward: Forward, made: list[list[Tensor]] | None = None) -> dict[str, Any]:
        arena: Arena = self.laid[side]
        made = self.results(forward) if made is None else made
        for n in range(len(ORDER)):
            gate, outs = ORDER[n], made[ORDER[n - 1]]
            for number in range(2):
                words = outs[min(number, len(outs) - 1)].contiguous().view(torch.int32).reshape(-1)
                at = self.laid["place"].samples + (gate * 2 + number) * SAMPLES * 4
                arena.tensor(at, (SAMPLES,), torch.int32).copy_(words[positions(SEED + gate, words.numel())])
        return {}

    def audit(self, slots: list[int] = ORDER) -> dict[str, Any]:
        self.leave(1, self.results(self.right)[1])
        self.take()
        return self.judged(slots)

    def take(self, **more: int) -> None:
        self.desk.audit_take({"case": self.case.id, "whole": 1} | more)

    def judged(self, slots: list[int] = ORDER) -> dict[str, Any]:
        return self.desk.audit({"case": self.case.id, "layout": 0, "slots": slots, "sample_seed": SEED})

    def leave(self, slot: int, outputs: list[Tensor]) -> None:
        """Put whole outputs where those of a slot go."""
        results = self.laid["order"]["results"]
        for place, output in zip(results["outputs"], outputs, strict=True):
            at = results["at"] + slot * results["block"] + place["at"]
            self.laid["theirs"].tensor(at, tuple(output.shape), output.dtype).copy_(output)

    def close(self) -> None:
        self.court.close()


@pytest.fixture
def replay() -> Iterator[Callable[..., Replay]]:
    made: list[Replay] = []

    def begin(*which: str) -> Replay:
        made.append(Replay(*which))
        return made[-1]

    yield begin
    for one in made:
        one.close()


WHICH = [("rms_norm", "plain"), ("rms_norm", "residual"), ("silu_and_mul", "plain"), ("softmax", "plain")]


@pytest.mark.parametrize("which", WHICH)
def test_the_right_function(replay: Callable[..., Replay], which: tuple[str, str]) -> None:
    made = replay(*which)
    for _ in range(5):
        made.desk.refill(made.case.id)
        made.replay("theirs", made.right)
        assert made.audit() == {"wrong": 0, "checked": 4}


@pytest.mark.parametrize("which", WHICH)
def test_results_of_the_inputs_before(replay: Callable[..., Replay], which: tuple[str, str]) -> None:
    made = replay(*which)
    stale = made.results(made.right)
    made.desk.refill(made.case.id)
    made.replay("theirs", made.right, stale)
    told = made.audit()
    assert (told["wrong"], told["checked"]) == (4, 4)


@pytest.mark.parametrize("slot", ORDER)
def test_one_call_of_the_replay(replay: Callable[..., Replay], slot: int) -> None:
    made = replay("silu_and_mul", "plain")
    stale = made.results(made.right)[slot]
    made.desk.refill(made.case.id)
    found = made.results(made.right)
    made.replay("theirs", made.right, [stale if n == slot else r for n, r in enumerate(found)])
    told = made.audit()
    assert (told["wrong"], told["checked"]) == (1, 4)


def test_the_second_output_alone(replay: Callable[..., Replay]) -> None:
    made = replay("rms_norm", "residual")
    stale = made.results(made.right)
    made.desk.refill(made.case.id)
    fresh = made.results(made.right)
    made.replay("theirs", made.right, [[new[0], old[1]] for new, old in zip(fresh, stale, strict=True)])
    assert made.audit()["wrong"] == 4


@pytest.mark.parametrize("what", ["nothing was written", "poison"])
def test_no_samples_at_all(replay: Callable[..., Replay], what: str) -> None:
    made = replay("softmax", "plain")
    if what == "poison":
        place = made.laid["place"]
        size = place.calls * 2 * SAMPLES
        made.laid["theirs"].tensor(place.samples, (size,), torch.int32).fill_(-1)
    assert made.audit()["wrong"] == 4


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [2, 0, 3], [], [2, 0, 3, 1, 4]])
def test_another_order_than_was_captured(replay: Callable[..., Replay], slots: list[int]) -> None:
    made = replay("softmax", "plain")
    made.replay("theirs", made.right)
    assert made.audit(slots)["wrong"] > 0


def test_a_part_of_the_work_left_out(replay: Callable[..., Replay]) -> None:
    """Every twentieth element stays as it was: 5% less work in each timed call, over several audits."""
    made = replay("silu_and_mul", "plain")
    wrong = 0
    for _ in range(6):
        stale = made.results(made.right)
        made.desk.refill(made.case.id)
        fresh = made.results(made.right)
        for new, old in zip(fresh, stale, strict=True):
            new[0].reshape(-1)[::20] = old[0].reshape(-1)[::20]
        made.replay("theirs", made.right, fresh)
        wrong += made.audit()["wrong"]
    assert wrong > 6


@pytest.mark.parametrize("seen", ["samples", "whole"])
def test_what_is_wrong_is_shown_with_index_and_values(replay: Callable[..., Replay], seen: str) -> None:
    """Of samples too, by their place in the whole output."""
    made = replay("rms_norm", "residual")
    right = made.results(made.right)
    bad = [[y, torch.where(torch.arange(total.shape[-1]) % 2 == 1, total + 4, total)] for y, total in right]
    made.replay("theirs", made.right, bad if seen == "samples" else right)
    made.leave(1, right[1] if seen == "samples" else bad[1])
    made.take()
    told = made.judged()
    fault = _stale(told, made.case.id)
    assert fault.mismatch is not None
    row, column = fault.mismatch.index
    shown = fault.mismatch.expected, fault.mismatch.got
    outputs = [(float(r[1][row, column]), float(b[1][row, column])) for r, b in zip(right, bad, strict=True)]
    assert any(shown == pytest.approx(both, rel=1e-2) for both in outputs)
    assert column % 2 == 1
    assert "in a timed call" in fault.mismatch.note
    assert f"at [{row}, {column}]: expected " in fault.reason
    assert fault.evidence[0].what == fault.reason


def test_an_honest_difference_in_rounding(replay: Callable[..., Replay]) -> None:
    """Another order of summation, another last bit: near the baseline, or else right by the oracle."""
    made = replay("rms_norm", "residual")
    made.desk.refill(made.case.id)

    def other(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        y, total = made.right(x, residual)
        up = torch.nextafter(y, torch.full_like(y, 9e9))
        return torch.where(torch.arange(y.shape[-1]) % 5 == 0, up, y), total

    made.replay("theirs", other)
    assert made.audit()["wrong"] == 0


@pytest.mark.parametrize("repaired", ["samples", "whole"])
def test_what_is_repaired_behind_the_copy_stays_wrong(replay: Callable[..., Replay], repaired: str) -> None:
    made = replay("softmax", "plain")
    right = made.results(made.right)
    wrong = [[output * 2 for output in outputs] for outputs in right]
    made.replay("theirs", made.right, wrong if repaired == "samples" else right)
    made.leave(1, right[1] if repaired == "samples" else wrong[1])
    made.take()
    made.replay("theirs", made.right)
    made.leave(1, right[1])
    assert made.judged()["wrong"] > 0
    made.take()
    assert made.judged()["wrong"] == 0


# -- replays that were timed -------------------------------------------------------------------------------------------


def timed(made: Replay, forward: Forward, fresh: int) -> list[list[Tensor]]:
    """Outputs of a call on each slot, as its inputs were in a replay with ``fresh``."""
    block, arguments = made.laid["place"].block, arguments_of(made.laid["order"])
    outputs = []
    for slot in range(len(ORDER)):
        values = made.laid["fill"].slot(source_of(slot, len(ORDER), fresh))
        result = forward(*refreshed(values, arguments, block, slot, fresh).values())
        outputs.append(list(result) if isinstance(result, tuple) else [result])
    return outputs


@pytest.mark.parametrize("which", WHICH)
def test_a_timed_replay_is_judged_on_the_inputs_that_it_had(
    replay: Callable[..., Replay], which: tuple[str, str]
) -> None:
    made = replay(*which)
    for fresh in (43, 44, 1 << 29):
        right = timed(made, made.right, fresh)
        made.replay("theirs", made.right, right)
        made.leave(1, right[1])
        made.take(layout=0, fresh=fresh)
        assert made.judged() == {"wrong": 0, "checked": 4}


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("left", ["by the replay before", "for the inputs that lie in the arena"])
@pytest.mark.parametrize("seen", ["samples", "whole"])
def test_outputs_that_a_timed_replay_left(
    replay: Callable[..., Replay], which: tuple[str, str], left: str, seen: str
) -> None:
    made = replay(*which)
    right = timed(made, made.right, 43)
    stale = timed(made, made.right, 42) if left == "by the replay before" else made.results(made.right)
    made.replay("theirs", made.right, stale if seen == "samples" else right)
    made.leave(1, right[1] if seen == "samples" else stale[1])
    made.take(layout=0, fresh=43)
    told = made.judged()
    assert (told["wrong"], told["checked"]) == ((4, 4) if seen == "samples" else (1, 1))
    fault = _stale(told, made.case.id, timed=True)
    assert fault.mismatch is not None
    assert "a timed replay" in fault.reason


def test_one_call_of_a_timed_replay(replay: Callable[..., Replay]) -> None:
    made = replay("silu_and_mul", "plain")
    right, stale = timed(made, made.right, 43), timed(made, made.right, 42)
    made.replay("theirs", made.right, [stale[n] if n == 2 else outs for n, outs in enumerate(right)])
    made.leave(1, right[1])
    made.take(layout=0, fresh=43)
    told = made.judged()
    assert (told["wrong"], told["checked"]) == (1, 4)


def test_copies_are_judged_as_they_were_taken(replay: Callable[..., Replay]) -> None:
    """A timed replay's comes first; that the judge draws new inputs for an audit meanwhile changes nothing."""
    made = replay("softmax", "plain")
    right = timed(made, made.right, 43)
    made.replay("theirs", made.right, right)
    made.leave(1, right[1])
    made.take(layout=0, fresh=43)
    made.desk.refill(made.case.id)
    made.replay("theirs", made.right)
    made.leave(1, made.results(made.right)[1])
    made.take()
    assert made.judged() == {"wrong": 0, "checked": 4}
    assert made.judged() == {"wrong": 0, "checked": 4}
