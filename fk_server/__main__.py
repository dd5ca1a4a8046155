"""``python -m fk_server``: serve MCP over stdio, or over streamable HTTP with ``--http HOST:PORT``."""

from __future__ import annotations

import argparse
import logging
import sys

from fk_core import settings
from fk_core.errors import RequestError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fk serve", description="Serve MCP over stdin and stdout, or over HTTP.")
    parser.add_argument("--http", metavar="HOST:PORT", default="", help="serve streamable HTTP at http://HOST:PORT/mcp")
    options = parser.parse_args(arguments)
    # stdout is the wire: every log line goes to stderr, also those of libraries.
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )

    from fk_server.web import parse_address, run_http, security

    try:
        address = parse_address(options.http) if options.http else None
        if address is not None:
            security(address[0])
        loaded = settings.load()
    except RequestError as error:
        sys.stderr.write(f"fk serve: {error}\n")
        return error.exit_code

    from fk_core.harness import Harness
    from fk_server.app import build_server
    from fk_server.stdio import run_stdio

    server = build_server(Harness(loaded))
    if address is not None:
        run_http(server, *address)
        return 0
    run_stdio(server, server.services)
    return 0


if __name__ == "__main__":
    sys.exit(main())
