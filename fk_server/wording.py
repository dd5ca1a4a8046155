"""Texts of ``fk_core`` name commands of ``fk`` and their options; a model that reads them over MCP has tools instead.

A text there names both in backticks, and with an option the command that has it: who reads it may be at another one.
"""

from __future__ import annotations

import re
from typing import Any

_COMMAND = re.compile(r"`fk (ops|gpus|stub(?: (\w+))?|validate(?: (\w+) FILE)?)`")
_OPTION = re.compile(r"`--([a-z-]+)(?: ([\w*:-]+))?`")
_ARGUMENT = {"fresh": "fresh=true", "out": "out_path"} | {same: same for same in ("allow", "cases", "device", "dtype")}
_AS_IT_IS = ("source", "log_tail")
"""Fields that quote somebody's own text."""


def in_tools(value: Any) -> Any:
    """The same text, or JSON value, with tools and arguments in place of commands and options.

    ``list_ops`` for `` `fk ops` ``, ``device='cpu'`` for `` `--device cpu` ``.
    """
    if isinstance(value, str):
        return _OPTION.sub(_argument, _COMMAND.sub(_tool, value))
    if isinstance(value, dict):
        return {key: item if key in _AS_IT_IS else in_tools(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_tools(item) for item in value]
    return value


def _tool(command: re.Match[str]) -> str:
    said, stub, validate = command.groups()
    if validate:
        return f"validate_kernel(op={validate!r}, source=...)"
    if stub and stub != "OP":
        return f"create_stub(op={stub!r})"
    return {"ops": "list_ops", "gpus": "gpu_status", "stub": "create_stub", "validate": "validate_kernel"}[
        said.partition(" ")[0]
    ]


def _argument(option: re.Match[str]) -> str:
    name, value = option.groups()
    if name not in _ARGUMENT:
        return option[0]
    return _ARGUMENT[name] if value is None else f"{_ARGUMENT[name]}={value!r}"
