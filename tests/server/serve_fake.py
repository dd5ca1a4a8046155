"""A server process over the scripted harness: ``serve_fake.py HOME [--http HOST:PORT]``.

``close`` of the harness leaves a file, and a job with ``#child`` starts a process, so that tests see from outside
what became of both.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from fk_core.records.report import ValidateReport, ValidateRequest
from fk_server.app import build_server
from fk_server.stdio import run_stdio
from fk_server.web import listen, parse_address, run_http
from tests.server.fakes import FakeHarness, huge, passing, settings_in, tampered, wrong


class ProcessHarness(FakeHarness):
    """Has a child process while a job with ``#child`` runs, as the real harness has its zygote."""

    child: subprocess.Popen[bytes] | None = None

    def warm(self) -> None:
        # What libraries do at import time, and what must not reach the wire.
        print("a library prints on import")  # noqa: T201
        warnings.warn("and warns", stacklevel=1)
        subprocess.run(["echo", "a child prints"], check=True)
        (self.settings.home / "warmed").touch()
        super().warm()

    def validate(self, request: ValidateRequest, *args: object, **kwargs: object) -> ValidateReport:  # type: ignore[override]
        if "#child" in request.source:
            self.child = subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL)
            (self.settings.home / "child").write_text(str(self.child.pid), encoding="utf-8")
        return super().validate(request, *args, **kwargs)  # type: ignore[arg-type]

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        (self.settings.home / "closed").write_text("yes", encoding="utf-8")
        super().close()


def _script(home: Path, request: ValidateRequest) -> Callable[[ValidateRequest, str], ValidateReport]:
    """What a sound harness would say of the source; with a file ``blind`` in the home, it finds everything right."""
    if (home / "blind").exists():
        return passing
    if "time.perf_counter =" in request.source:
        return tampered
    if "// 8" in request.source:
        return wrong
    return huge if "#huge" in request.source else passing


def main() -> None:
    home = Path(sys.argv[1])
    home.mkdir(parents=True, exist_ok=True)
    harness = ProcessHarness(settings_in(home))
    harness.make_report = lambda request, attempt: _script(home, request)(request, attempt)
    server = build_server(harness)  # type: ignore[arg-type]
    if sys.argv[2:3] == ["--http"]:
        host, port = parse_address(sys.argv[3])
        run_http(server, host, listen(host, port))
    else:
        run_stdio(server, server.services)


if __name__ == "__main__":
    main()
