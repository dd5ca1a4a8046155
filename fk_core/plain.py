"""Text and JSON that are safe to hand to anyone: terminals, clients, strict parsers.

Compilers and candidates print what they like; a lone surrogate in a reply ends an MCP connection, an escape sequence
rewrites a terminal, and NaN is no JSON.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pydantic import BaseModel

_UNSAFE = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Text without terminal escapes and carriage returns; other controls and lone surrogates become U+FFFD."""
    return _UNSAFE.sub(lambda hit: "" if hit.group()[0] in "\x1b\r" else "\N{REPLACEMENT CHARACTER}", text)


def clean(value: Any) -> Any:
    """A JSON value with safe strings, and null for numbers that JSON does not have."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean_text(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def failure(code: str, message: str, hint: str) -> str:
    """What ``--json`` prints where there is no answer."""
    return document({"error": {"code": code, "message": message, "hint": hint}})


def document(record: BaseModel | dict[str, Any]) -> str:
    """A record as one readable JSON document."""
    data = record.model_dump(mode="json") if isinstance(record, BaseModel) else record
    return json.dumps(clean(data), ensure_ascii=False, indent=1, allow_nan=False)
