"""Where an argument begins in a longer tensor, and which of several are such parts."""

from __future__ import annotations

import random

import torch

from fk_core.child import inputs, layouts
from fk_core.child.layouts import LANES, buffer_shape, part, spread, with_part
from tests.unit.child.test_probes import plan_of, task_of


def test_a_part_begins_anywhere_and_stays_as_aligned() -> None:
    source, offsets = random.Random(1), set()
    for _ in range(200):
        shape = (source.randint(1, 4), source.randint(1, 4), 16 * source.randint(1, 20))
        layout = source.choice(("near", "far", "heads"))
        found = part(torch.zeros(buffer_shape(shape, layout, source)), shape)  # type: ignore[arg-type]
        assert tuple(found.shape) == shape
        assert found.stride(-1) == 1
        assert found.storage_offset() % LANES == 0
        offsets.add(found.storage_offset() > 0)
    assert offsets == {False, True}


def test_what_lies_around_a_part_is_told_apart() -> None:
    source = random.Random(2)
    for _ in range(50):
        shape = (3, 32)
        values = torch.randn(shape)
        buffer = spread(values, buffer_shape(shape, "far", source))
        assert torch.equal(part(buffer, shape), values)
        assert int(buffer.isnan().sum()) == buffer.numel() - values.numel()
        other = buffer.clone()
        part(other, shape).fill_(7)
        assert torch.equal(with_part(buffer, other, shape).nan_to_num(1.5), other.nan_to_num(1.5))


def test_of_several_arguments_any_may_be_the_part() -> None:
    task, kinds = task_of("rms_norm"), set()
    for seed in range(12):
        for probe in plan_of("rms_norm", cpu=True, seed=seed):
            call = inputs.call_of(task, probe)
            if probe.layout and len(call.shapes) > 1:
                longer = inputs.buffer_shapes(call, probe)
                kinds.add(tuple(longer[name] != shape for name, shape in call.shapes.items()))
    assert kinds == {(True, True), (True, False), (False, True)}
    assert layouts.part(torch.zeros(2, 3), (2, 3)).shape == (2, 3)
