"""Which weights of a candidate's modules are moved from layout to layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fk_core.child.module import FunctionModule
from fk_core.child.weights import movable_weights


class Odd(nn.Module):
    """Parameters and buffers of many kinds, and scratch memory with a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))
        self.tied = self.weight
        self.turned = nn.Parameter(torch.ones(4, 6).T)
        self.empty = nn.Parameter(torch.ones(0))
        self.register_buffer("scale", torch.ones(3), persistent=False)
        self.register_buffer("ids", torch.arange(5))
        self.register_buffer("scratch", torch.ones(8), persistent=False)
        self.register_buffer("part", self.scratch[:4], persistent=False)
        self.register_buffer("none", None)
        self.register_buffer("elsewhere", torch.ones(2, device="meta"))
        with torch.inference_mode():
            self.register_buffer("inferred", torch.ones(4))
        self.child = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Subclass(Tensor):
    pass


STATE = {"weight", "scale", "ids", "turned", "empty", "elsewhere", "inferred", "special", "child.weight"}


def test_plain_weights_that_the_task_names() -> None:
    odd = Odd()
    odd.register_buffer("special", torch.ones(3).as_subclass(Subclass))
    found = movable_weights([odd], STATE, "cpu")
    wanted = [odd.weight, odd.scale, odd.ids, odd.child.weight]
    assert {id(tensor) for tensor in found} == {id(tensor) for tensor in wanted}
    assert len(found) == len(wanted)
    assert movable_weights([odd], STATE) == [], "none of them is on a GPU"
    assert movable_weights([odd], {"tied"}, "cpu") == [odd.weight]


def test_weights_that_two_modules_have_in_one_memory_are_moved_apart() -> None:
    one, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    other.weight.data = one.weight.data
    found = movable_weights([one, other], {"weight"}, "cpu")
    assert [id(tensor) for tensor in found] == [id(one.weight), id(other.weight)]


def test_weights_of_baselines_and_functions() -> None:
    state = {"weight": torch.ones(3)}
    baseline = FunctionModule(lambda x: x, state)
    (found,) = movable_weights([baseline, torch.neg], {"weight"}, "cpu")
    assert found is state["weight"]


def test_a_weight_that_was_moved_is_the_same_weight() -> None:
    """What a module, its copy in an optimiser's list and its state_dict hold stays one object with one value."""
    odd: Any = Odd()
    found = movable_weights([odd], STATE, "cpu")
    before = [tensor.detach().clone() for tensor in found]
    for tensor in found:
        torch._C.TensorBase.data.__set__(tensor, tensor.detach().clone())
    assert odd.weight is odd.tied
    assert all(torch.equal(a, b) for a, b in zip(found, before, strict=True))
    assert odd.weight.requires_grad
    assert torch.equal(odd.state_dict()["weight"], before[0])
