"""Serving over streamable HTTP. uvicorn owns the signals; an open stream can't hold up the end for long."""

from __future__ import annotations

import os
import socket
import sys

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from fk_core.errors import RequestError
from fk_server.strict import StrictServer

PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GRACE_S = 2


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``[V6]:PORT`` or ``:PORT`` (loopback)."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise RequestError(f"{text!r} is no HOST:PORT", hint="For example 127.0.0.1:8000")
    return host, int(port)


def security(host: str, environ: dict[str, str] | None = None) -> TransportSecuritySettings | None:
    """Which Host headers are served. None leaves the SDK's own protection of loopback addresses.

    There is no authentication: whoever reaches the port can run code on this machine, if only in the sandbox. Beyond
    loopback the names under which the server is reached must therefore be given on purpose.
    """
    if host in _LOOPBACK:
        return None
    env = dict(os.environ) if environ is None else environ
    names = [name.strip() for name in env.get("FK_HTTP_ALLOWED_HOSTS", "").split(",") if name.strip()]
    if not names:
        raise RequestError(
            f"{host!r} can be reached from other machines, and the server has no authentication",
            hint="Bind 127.0.0.1 and forward the port, or set FK_HTTP_ALLOWED_HOSTS=name:port,... on purpose",
        )
    return TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, by IPv4 where the host has both. Raises ``RequestError`` where that can't be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(found, key=lambda row: row[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise RequestError(
            f"can't listen on {_shown(host)}:{port}: {error.strerror or error}",
            hint="Give `fk serve` another HOST:PORT, or end what listens there; port 0 takes any that is free",
        ) from error


def run_http(server: StrictServer, host: str, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM. ``host``: as it was asked for, which decides what Host headers are served."""
    app = server.streamable_http_app(streamable_http_path=PATH, host=host, transport_security=security(host))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE_S)
    sys.stderr.write(f"FK server at http://{_shown(host)}:{listening.getsockname()[1]}{PATH}\n")
    anyio.run(uvicorn.Server(config).serve, [listening])


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
