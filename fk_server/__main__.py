"""``python -m fk_server``: serve MCP over stdio, or over streamable HTTP with ``--http HOST:PORT``."""

from __future__ import annotations

import contextlib
import logging
import sys

from fk_core import rights, settings
from fk_core.errors import RequestError
from fk_core.plain import clean_text, failure
from fk_server.arguments import Arguments, wants_json


def main(arguments: list[str] | None = None) -> int:
    rights.keep_own()
    given = sys.argv[1:] if arguments is None else arguments
    parser = Arguments(prog="fk serve", description="Serve MCP over stdin and stdout, or over HTTP.")
    parser.add_argument("--http", metavar="HOST:PORT", default="", help="serve streamable HTTP at http://HOST:PORT/mcp")
    # stdout is the wire: every log line goes to stderr, also those of libraries.
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )

    from fk_server.roots import Roots
    from fk_server.web import listen, parse_address, run_http, security

    try:
        options = parser.parse_args(given)
        address = parse_address(options.http) if options.http else None
        if address is not None:
            security(address[0])
        loaded = settings.load()
        roots = Roots.from_environment()
        listening = None if address is None else listen(*address)
    except RequestError as error:
        if wants_json(given):
            sys.stdout.write(failure(error.code, error.message, error.hint) + "\n")
        sys.stderr.write(f"fk serve: {clean_text(str(error))}\n")
        return error.exit_code

    from fk_core.harness import Harness
    from fk_server.app import build_server
    from fk_server.stdio import run_stdio

    server = build_server(Harness(loaded), roots=roots)
    if address is not None and listening is not None:
        with contextlib.suppress(KeyboardInterrupt):  # raised again once all has ended
            run_http(server, address[0], listening)
        return 0
    run_stdio(server, server.services)
    return 0


if __name__ == "__main__":
    sys.exit(main())
