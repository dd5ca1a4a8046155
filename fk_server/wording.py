"""Texts of ``fk_core`` name commands of ``fk``; a model that reads them over MCP has tools instead."""

from __future__ import annotations

import re
from typing import Any

_COMMAND = re.compile(r"`fk (ops|gpus|stub (\w+)|validate (\w+) FILE)`")
_AS_IT_IS = ("source", "log_tail")
"""Fields that quote somebody's own text."""


def in_tools(value: Any) -> Any:
    """The same text, or JSON value, with the tool in place of each command: ``list_ops`` for `` `fk ops` ``."""
    if isinstance(value, str):
        return _COMMAND.sub(_tool, value)
    if isinstance(value, dict):
        return {key: item if key in _AS_IT_IS else in_tools(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_tools(item) for item in value]
    return value


def _tool(command: re.Match[str]) -> str:
    said, stub, validate = command.groups()
    if validate:
        return f"validate_kernel(op={validate!r}, source=...)"
    if stub:
        return "create_stub" if stub == "OP" else f"create_stub(op={stub!r})"
    return {"ops": "list_ops", "gpus": "gpu_status"}[said]
