"""Entry point of ``fk``. Imports nothing heavy: ``fk serve`` must answer its client within a second."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fk_core import rights

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_OTHER_PROGRAMS = {"serve": "fk_server", "demo": "fk_server.demo"}


def main() -> None:
    rights.keep_own()
    arguments = sys.argv[1:]
    if arguments and arguments[0] in _OTHER_PROGRAMS and not {"-h", "--help"} & set(arguments):
        become(_OTHER_PROGRAMS[arguments[0]], arguments[1:])
    from fk_core.commands import run

    sys.exit(run(arguments))


def become(module: str, arguments: list[str]) -> None:
    """Replace this process by ``python -m module``: same pid, same stdin and stdout, and no import of that module here.

    The server is a program of its own over this package, which never imports it.
    """
    environ = dict(os.environ)
    if _PACKAGE_ROOT.name not in ("site-packages", "dist-packages"):
        # -P keeps the user's directory, and any module lying in it, off the path; a checkout must then be named.
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), environ.get("PYTHONPATH", "")]))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environ)


if __name__ == "__main__":
    main()
