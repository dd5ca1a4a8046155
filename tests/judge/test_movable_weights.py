"""Which weights of a candidate's modules are moved from layout to layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fk_core.child.module import FunctionModule
from fk_core.child.runner import movable_weights


class Odd(nn.Module):
    """Parameters and buffers of many kinds; only ``weight``, ``scale`` and ``ids`` can be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))
        self.tied = self.weight
        self.turned = nn.Parameter(torch.ones(4, 6).T)
        self.empty = nn.Parameter(torch.ones(0))
        self.register_buffer("scale", torch.ones(3), persistent=False)
        self.register_buffer("ids", torch.arange(5))
        self.register_buffer("same", self.scale.view(3))
        self.register_buffer("none", None)
        self.register_buffer("elsewhere", torch.ones(2, device="meta"))
        with torch.inference_mode():
            self.register_buffer("inferred", torch.ones(4))
        self.child = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Subclass(Tensor):
    pass


def test_plain_weights_each_once() -> None:
    odd = Odd()
    odd.register_buffer("special", torch.ones(3).as_subclass(Subclass))
    found = movable_weights([odd], "cpu")
    wanted = [odd.weight, odd.scale, odd.ids, odd.child.weight]
    assert {id(tensor) for tensor in found} == {id(tensor) for tensor in wanted}
    assert movable_weights([odd]) == [], "none of them is on a GPU"


def test_weights_of_baselines_and_functions() -> None:
    state = {"weight": torch.ones(3)}
    baseline = FunctionModule(lambda x: x, state)
    (found,) = movable_weights([baseline, torch.neg], "cpu")
    assert found is state["weight"]


def test_a_weight_that_was_moved_is_the_same_weight() -> None:
    """What a module, its copy in an optimiser's list and its state_dict hold stays one object with one value."""
    odd: Any = Odd()
    found = movable_weights([odd], "cpu")
    before = [tensor.detach().clone() for tensor in found]
    for tensor in found:
        torch._C.TensorBase.data.__set__(tensor, tensor.detach().clone())
    assert odd.weight is odd.tied
    assert all(torch.equal(a, b) for a, b in zip(found, before, strict=True))
    assert odd.weight.requires_grad
    assert torch.equal(odd.state_dict()["weight"], before[0])
