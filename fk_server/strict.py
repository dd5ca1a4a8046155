"""An ``MCPServer`` that is strict where agents slip: unknown arguments, nulls, limits, mangled schemas."""

from __future__ import annotations

import difflib
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, Tool
from pydantic import ValidationError

from fk_core.plain import clean_text
from fk_server.services import Services


class StrictServer(MCPServer[Any]):
    """Refuses what the SDK would drop or repair in silence, and says what was meant."""

    services: Services

    async def run_over(self, read: Any, write: Any) -> None:
        """Serve one connection over a pair of message streams, in whichever protocol era the client speaks."""
        server = self._lowlevel_server
        await server.run(read, write, server.create_initialization_options())

    async def list_tools(self) -> list[Tool]:
        return [
            tool.model_copy(update={"input_schema": _closed(tool.input_schema)}) for tool in await super().list_tools()
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        tool = self._tool_manager.get_tool(name)
        if tool is None:
            known = [known.name for known in self._tool_manager.list_tools()]
            raise ToolError(f"no tool {clean_text(name)!r}; {_nearest(name, known)}")
        properties, required = tool.parameters.get("properties", {}), tool.parameters.get("required", [])
        given: dict[str, Any] = {}
        for key, value in arguments.items():
            if key not in properties:
                raise ToolError(f"{name} has no argument {clean_text(key)!r}; {_nearest(key, list(properties))}")
            # Models write null, or the word, for an optional argument that they mean to leave out.
            if key not in required and (value is None or value == "null"):
                continue
            given[key] = value
        try:
            return await super().call_tool(name, given, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(_teach(name, error.__cause__)) from error
            raise


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The input schema without generated titles, closed against other arguments."""
    properties = {
        key: {word: item for word, item in value.items() if word != "title"}
        for key, value in schema.get("properties", {}).items()
    }
    kept = {key: value for key, value in schema.items() if key != "title"}
    return {**kept, "properties": properties, "additionalProperties": False}


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.5)
    return f"nearest: {', '.join(close)}" if close else f"there are: {', '.join(sorted(known))}"


def _teach(tool: str, error: ValidationError) -> str:
    """One line for each wrong argument."""
    lines = []
    for fault in error.errors(include_url=False, include_context=False)[:5]:
        where = ".".join(str(part) for part in fault["loc"]) or "arguments"
        got = "" if fault["type"] == "missing" else f", got {fault['input']!r:.80}"
        lines.append(f"{where}: {fault['msg']}{got}")
    return clean_text(f"{tool} was called wrongly. " + "; ".join(lines))
