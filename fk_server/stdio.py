"""Serving over stdin and stdout, and ending when the client, the parent or a signal says so.

The SDK handles no signal here, ends only after its threads do, and drops a request that it cannot decode. A client
that stops a server sends SIGINT, 100 ms later SIGTERM and 400 ms later SIGKILL, so the end must be quick; children of
the harness die with this process in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
from typing import Any

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import CallToolResult, ErrorData, JSONRPCError, JSONRPCResponse, TextContent
from pydantic import ValidationError

from fk_server.services import Services
from fk_server.strict import StrictServer

log = logging.getLogger(__name__)

_SIGNAL_GRACE_S = 0.35
_END_GRACE_S = 1.5
_PARENT_POLL_S = 0.5
_INVALID_REQUEST = -32600


def run_stdio(server: StrictServer, services: Services) -> None:
    """Serve until the input ends, the parent dies or a signal comes. Does not return: the process exits with 0."""
    parent = os.getppid()
    try:
        anyio.run(_serve, server, services, parent)
    finally:
        # Worker threads may still wait for a job; nobody is left to read what they would say.
        services.close()
        os._exit(0)


def _exit_within(services: Services, grace_s: float) -> None:
    """Close the services and exit with 0, after ``grace_s`` seconds at the latest."""

    def end() -> None:
        closer = threading.Thread(target=services.close, daemon=True)
        closer.start()
        closer.join(grace_s)
        os._exit(0)

    threading.Thread(target=end, name="fk-exit", daemon=True).start()


async def _serve(server: StrictServer, services: Services, parent: int) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _exit_within, services, _SIGNAL_GRACE_S)
    async with stdio_server() as (read, write):
        sender, receiver = anyio.create_memory_object_stream[Any](0)

        async def feed() -> None:
            """Hand every message on, and answer those that no one else will."""
            async with sender:
                async for item in read:
                    refused = _refusal(item) if isinstance(item, Exception) else None
                    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        if refused is not None:
                            await write.send(refused)
                        else:
                            await sender.send(item)
            # Nobody asks any more: leave in order if that is quick, else without it.
            _exit_within(services, _END_GRACE_S)

        async def watch_parent() -> None:
            while os.getppid() == parent:
                await anyio.sleep(_PARENT_POLL_S)
            log.warning("the client's process is gone; exiting")
            _exit_within(services, _SIGNAL_GRACE_S)

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(feed)
                tasks.start_soon(watch_parent)
                await server.run_over(receiver, write)
                tasks.cancel_scope.cancel()
        finally:
            # Also reached when the output broke: then a thread still sits in a read that may never end.
            _exit_within(services, _END_GRACE_S)


def _refusal(error: Exception) -> SessionMessage | None:
    """The answer to a request that is JSON but no valid message, for example with half a surrogate pair in a string.

    None where there is no request id to answer to.
    """
    if not isinstance(error, ValidationError):
        return None
    line = next((fault["input"] for fault in error.errors(include_url=False) if isinstance(fault["input"], str)), "")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or "method" not in message or not isinstance(message.get("id"), int | str):
        return None
    if isinstance(message["id"], str):
        message["id"] = message["id"].encode("utf-8", "replace").decode()
    why = "the message could not be decoded: a string in it holds half of a surrogate pair, or it is no valid request"
    if message["method"] == "tools/call":
        text = f"{why}. Send source text as valid UTF-8."
        result = CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        body = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=message["id"], result=body))
    fault = ErrorData(code=_INVALID_REQUEST, message=why)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=message["id"], error=fault))
