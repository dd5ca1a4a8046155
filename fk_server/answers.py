"""The one way in which a tool answers: structured content that any client can show, and the same as compact text.

Clients differ in which of the two they show to the model, so neither may hold what the other lacks. Strings are made
safe for the wire (a lone surrogate would end the connection), numbers are finite, the whole stays under the limit.
"""

from __future__ import annotations

import json
from typing import Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel

from fk_core.plain import clean

ANSWER_CHARACTERS = 8000


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def size(value: Any) -> int:
    """Characters of a value as clients see it."""
    return len(compact(value))


def answer(value: BaseModel | dict[str, Any]) -> CallToolResult:
    """The result of a tool. Raises ``ValueError`` if it is too large: fitting it is the tool's own work."""
    data = clean(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)
    text = compact(data)
    if len(text) > ANSWER_CHARACTERS:
        raise ValueError(f"an answer of {len(text)} characters; at most {ANSWER_CHARACTERS} are sent")
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=data)
