"""How many modules take turns in the timed calls of a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fk_core.child.arena import HostArena
from fk_core.child.module import FunctionModule
from fk_core.child.runner import Runner

COUNT, FEW = 12, 4
WEIGHT = {"weight": {"at": 0, "shape": [8], "dtype": "float32"}}


class Without(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Weighted(Without):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))


class Table(Without):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(8), persistent=False)


class Outer(Without):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Table()


class Late(Without):
    """Makes a buffer in its first call: the judged module has been called before there are copies."""

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("table", torch.ones(8), persistent=False)
        return x


class Hidden(Table):
    """Says of itself that it has none."""

    def buffers(self, recurse: bool = True) -> Any:
        return iter(())


def copies(make: Callable[[dict[str, Tensor]], Any], state: dict[str, Any], count: int) -> list[Any]:
    runner = Runner(torch.device("cpu"), lambda entry, init, state, dtype, device: make(state))
    runner.arenas["main"] = HostArena.create(4096)
    runner.do_make({"key": "k", "entry": "E", "init": {}, "dtype": "float32", "state": state}, [])
    judged = runner.modules["k"][1]
    judged(torch.ones(8))
    found = runner._copies("k", count)
    assert judged not in found
    assert len({id(forward) for forward in found}) == len(found)
    assert runner._copies("k", count) == found, "the next case of the same module has the same ones"
    return found


@pytest.mark.parametrize("kind", [Weighted, Table, Outer, Late, Hidden])
def test_a_copy_for_each_call_where_tensors_are_held(kind: type[nn.Module]) -> None:
    assert len(copies(lambda state: kind(), {}, COUNT)) == COUNT


def test_a_copy_for_each_call_where_a_function_has_weights() -> None:
    made = copies(lambda state: FunctionModule(lambda x: x, state), WEIGHT, COUNT)
    assert len({module.held["weight"].data_ptr() for module in made}) == COUNT


@pytest.mark.parametrize("make", [lambda state: Without(), lambda state: FunctionModule(lambda x: x, state)])
def test_a_few_copies_without_state(make: Callable[[dict[str, Tensor]], Any]) -> None:
    assert len(copies(make, {}, COUNT)) == FEW
    assert len(copies(make, {}, 3)) == 3


def test_what_is_no_module_counts_as_holding_some() -> None:
    assert len(copies(lambda state: lambda x: x, {}, COUNT)) == COUNT
