"""The values of timed slots: drawn many at once where rows are independent, as on a GPU, and the same on both sides."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fk_core.child import fill
from fk_core.child.calls import make_call
from fk_core.child.fill import Fill
from tests.judge.court import CATALOG, CPU, Court, case_of

WHICH = [("rms_norm", "plain"), ("rms_norm", "residual"), ("silu_and_mul", "plain"), ("softmax", "plain")]
GROUP = 5


class Laid:
    """One case laid out for timing, its values drawn as on a GPU: ``GROUP`` slots at once, or each by itself."""

    def __init__(self, op: str, form: str, alone: bool) -> None:
        self.case = case_of(CATALOG.get(op), form)
        self.court = Court(op, cases=[self.case])
        if alone:
            self.court.job.task["entries"][self.case.entry]["forms"][form].update(rows="", leading="")
        self.desk = self.court.job.timing
        for fd in self.desk.open_case(self.case.id, 2, 100.0, 40)["fds"]:
            os.close(fd)
        self.laid = self.desk.cases[self.case.id]

    @property
    def fill(self) -> Fill:
        found: Fill = self.laid["fill"]
        return found

    def values(self, side: str, slot: int) -> dict[str, torch.Tensor]:
        """What lies in the arena of that side."""
        start = self.laid["place"].pristine + slot * self.laid["place"].block
        return {
            a["name"]: self.laid[side].tensor(start + a["at"], tuple(a["shape"]), self.laid["call"].dtype)
            for a in self.laid["order"]["arguments"]
        }

    def outputs(self, side: str, slot: int) -> torch.Tensor:
        results = self.laid["order"]["results"]
        found: torch.Tensor = self.laid[side].tensor(
            results["at"] + slot * results["block"], (results["block"],), torch.uint8
        )
        return found


Lay = Callable[..., Laid]


@pytest.fixture
def lay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lay]:
    made: list[Laid] = []
    monkeypatch.setattr(Fill, "_windows", property(lambda self: False))

    def begin(op: str, form: str, *, alone: bool = False) -> Laid:
        case = case_of(CATALOG.get(op), form)
        task = CATALOG.get(op).model_dump(mode="json")
        call = make_call(task, entry=case.entry, form=form, dims=case.dims, init=case.init, dtype=case.dtype)
        size = sum(torch.Size(shape).numel() for shape in call.shapes.values()) * call.dtype.itemsize
        monkeypatch.setattr(fill, "_GROUP_BYTES", GROUP * size)
        made.append(Laid(op, form, alone))
        return made[-1]

    yield begin
    for one in made:
        one.court.close()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone"])
@pytest.mark.parametrize("which", WHICH)
def test_slots_are_what_a_refill_wrote_on_both_sides(lay: Lay, which: tuple[str, str], alone: bool) -> None:
    made = lay(*which, alone=alone)
    slots = made.laid["place"].calls
    assert slots % GROUP, "the last group is not whole"
    for side in ("theirs", "ours"):
        for slot in range(slots):
            made.outputs(side, slot).zero_()
    made.desk.refill(made.case.id)
    assert made.fill.group == (1 if alone else GROUP)
    for side in ("theirs", "ours"):
        for slot in range(slots):
            assert same(made.values(side, slot), made.fill.slot(slot))
            assert bool((made.outputs(side, slot) == 0xFF).all())
    drawn = [torch.cat([t.reshape(-1) for t in made.fill.slot(slot).values()]) for slot in range(slots)]
    assert len(torch.unique(torch.stack(drawn), dim=0)) == slots, "no two slots have the same values"
    before = made.fill
    made.desk.refill(made.case.id)
    assert not same(before.slot(0), made.fill.slot(0))


@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone"])
@pytest.mark.parametrize("which", WHICH)
def test_only_released_slots_are_written(lay: Lay, which: tuple[str, str], alone: bool) -> None:
    made = lay(*which, alone=alone)
    made.desk.refill(made.case.id)
    old = made.fill
    made.desk.draw(made.case.id)
    made.outputs("theirs", 7).zero_()
    made.desk.release(made.case.id, "theirs", [7, 2])
    for slot in range(10):
        now = made.fill if slot in (7, 2) else old
        assert same(made.values("theirs", slot), now.slot(slot))
        assert same(made.values("ours", slot), old.slot(slot))
    assert bool((made.outputs("theirs", 7) == 0xFF).all())


@pytest.mark.parametrize("windows", [True, False], ids=["windows", "groups"])
@pytest.mark.parametrize("which", WHICH)
def test_as_many_slots_in_a_row_have_every_look(
    which: tuple[str, str], windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fill, "_windows", property(lambda self: windows))
    task, case = CATALOG.get(which[0]).model_dump(mode="json"), case_of(CATALOG.get(which[0]), which[1])
    call = make_call(task, entry=case.entry, form=which[1], dims=case.dims, init=case.init, dtype=case.dtype)
    made = Fill(task, call, 24, lambda call, draw: {name: draw(name) for name in call.arguments}, 5, CPU)
    for slot in range(24):
        times, plus = made.look(slot)
        for values in made.slot(slot).values():
            assert values.dtype == call.dtype
            assert float(values.double().mean()) == pytest.approx(plus, abs=times)
            assert 0.2 * times < float(values.double().std()) < 2.5 * times
    assert all({made.look(slot + n) for n in range(8)} == set(fill.LOOKS) for slot in range(16))
    assert sum(made.look(slot) == fill.USUAL for slot in range(8)) == 5
    others = [Fill(task, call, 24, lambda call, draw: {}, seed, CPU) for seed in range(40)]
    assert {other.look(0) for other in others} == set(fill.LOOKS), "no slot has one look in every fill"


def integers(seed: int, slots: int = 23) -> Fill:
    task = CATALOG.get("rms_norm").model_dump(mode="json")
    dims, init = {"tokens": 3, "hidden": 64}, {"hidden_size": 64}
    call = make_call(task, entry="RMSNorm", form="residual", dims=dims, init=init, dtype="int32")

    def make_inputs(call: Any, draw: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: (draw(name) * 1000 + torch.arange(64)).contiguous() for name in call.arguments}

    return Fill(task, call, slots, make_inputs, seed, CPU)


def test_all_follows_from_the_seed() -> None:
    one, again, other = integers(1), integers(1), integers(2)
    assert one.group == 23
    for slot in (0, 11, 22):
        assert same(one.slot(slot), again.slot(slot))
        assert not same(one.slot(slot), other.slot(slot))
        assert all(values.is_contiguous() and values.shape == (3, 64) for values in one.slot(slot).values())
    assert not torch.equal(one.slot(4)["x"], one.slot(4)["residual"])


def test_on_a_cpu_floating_point_values_are_windows_of_a_pool() -> None:
    case = case_of(CATALOG.get("softmax"), "plain")
    task = CATALOG.get("softmax").model_dump(mode="json")
    call = make_call(task, entry=case.entry, form="plain", dims=case.dims, init=case.init, dtype=case.dtype)
    made = Fill(task, call, 8, lambda call, draw: {"x": draw("x")}, 5, CPU)
    assert made.group == 1
    assert torch.equal(made.neighbours(3)["x"][0], made.slot(3)["x"])
