"""Which files of the host a client may name: only those under the allowed roots."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fk_core.candidate_file import check_new_file, read_candidate
from fk_core.errors import BadPath, RequestError

log = logging.getLogger(__name__)

_VARIABLE = "FK_ALLOWED_ROOTS"


@dataclass(frozen=True)
class Roots:
    """Directories that ``path`` and ``out_path`` may lie in, with all links resolved."""

    allowed: tuple[Path, ...]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Roots:
        """The server's working directory and the colon-separated ``FK_ALLOWED_ROOTS``.

        A server that was started in ``/`` was not started in a project: ``/`` counts only where it is named. Raises
        ``RequestError`` for a named root that is relative to a working directory which was deleted, or no path at all.
        """
        env = os.environ if environ is None else environ
        names = [item for item in env.get(_VARIABLE, "").split(":") if item]
        try:
            here = (cwd or Path.cwd()).resolve()
        except OSError as error:
            relative = [name for name in names if not name.startswith(("/", "~"))]
            if relative:
                raise RequestError(
                    f"FK_ALLOWED_ROOTS names {relative[0]!r}, relative to a working directory that is gone",
                    hint="Name absolute directories, or start the server in a directory that exists",
                ) from error
            log.warning("the working directory is gone: clients may name files only under FK_ALLOWED_ROOTS")
            here = Path("/")
        named = [_named(name) for name in names]
        return cls(tuple(dict.fromkeys(([] if here == Path("/") else [here]) + named)))

    def resolve(self, path: str) -> Path:
        """The absolute path with links resolved. Raises ``BadPath`` outside the roots, or for a ``~`` of nobody."""
        if "\0" in path:
            raise BadPath("the path holds a NUL character")
        base = self.allowed[0] if self.allowed else Path("/")
        real = Path(os.path.realpath(base / _at_home(path)))
        if not any(real.is_relative_to(root) for root in self.allowed):
            listed = ", ".join(str(root) for root in self.allowed) or "none"
            raise BadPath(f"{path!r} lies outside the allowed roots ({listed})")
        return real

    def read(self, path: str, limit_bytes: int) -> str:
        return read_candidate(self.resolve(path), limit_bytes)

    def new_file(self, path: str) -> Path:
        """Where a new file may be made; nothing is ever overwritten."""
        real = self.resolve(path)
        check_new_file(real)
        return real


def _named(name: str) -> Path:
    """A root with links resolved."""
    try:
        return _at_home(name).resolve()
    except BadPath as error:
        raise RequestError(f"{_VARIABLE}: {error.message}", hint=error.hint) from error
    except RuntimeError as error:
        raise RequestError(
            f"{_VARIABLE} names {name!r}, a link that leads back to itself", hint="Name a directory"
        ) from error


def _at_home(path: str) -> Path:
    """The path with a ``~`` at its beginning replaced by the home directory it stands for."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise BadPath(
            f"{path!r:.300} begins with the home directory of a user that this machine doesn't know",
            hint="Give an absolute path",
        ) from error
