"""The base of all records: frozen, strict about unknown fields, and never carrying a number that is not one."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_finite_or_none)]
"""A measured number, or None where there is none; NaN and infinities become None, as JSON has neither."""


class Record(BaseModel):
    """A frozen value that crosses a boundary: process, file, or protocol."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
