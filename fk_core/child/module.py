"""A function as a module: what a baseline is called through, so that it costs what a candidate's module costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class FunctionModule(nn.Module):
    """Calls ``function``; ``state`` are the weights it was made with, by name."""

    def __init__(self, function: Callable[..., Any], state: dict[str, Tensor]) -> None:
        super().__init__()
        self.forward = function
        self.held = state

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return dict(self.held)
