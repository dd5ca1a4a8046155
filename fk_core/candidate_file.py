"""Reading a candidate's source from disk: regular files only, bounded, UTF-8."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fk_core.errors import BadPath, BadSource


def read_candidate(path: Path, limit_bytes: int) -> str:
    """Text of a candidate file. Raises ``BadPath`` if it is no readable file, ``BadSource`` if it is no such text."""
    try:
        # A pipe without a writer would block the open itself.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise BadPath(f"cannot read {os.fspath(path)!r}: {reason}", hint="Give the path of one Python file") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadPath(f"{os.fspath(path)!r} is not a regular file", hint="Give the path of one Python file")
    try:
        with os.fdopen(fd, "rb") as file:
            raw = file.read(limit_bytes + 1)
    except OSError as error:
        # Some that claim to be regular files, such as /proc/self/mem, can be opened and not read.
        reason = os.strerror(error.errno or 0)
        raise BadPath(f"cannot read {os.fspath(path)!r}: {reason}", hint="Give the path of one Python file") from error
    if len(raw) > limit_bytes:
        raise BadSource(f"{os.fspath(path)!r} is larger than {limit_bytes} bytes", hint="Candidates are source text")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadSource(
            f"{os.fspath(path)!r} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}",
            hint="Save the file as UTF-8",
        ) from error


def check_text(source: str, limit_bytes: int) -> None:
    """Raise ``BadSource`` for text that cannot be a file: lone surrogates, or too much of it."""
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise BadSource(
            f"the source holds a lone surrogate (U+{ord(source[error.start]):04X}) at character {error.start}",
            hint="Send the source as UTF-8 text",
        ) from error
    if size > limit_bytes:
        raise BadSource(
            f"the source has {size} bytes; at most {limit_bytes} are accepted", hint="Candidates are source text"
        )


def absolute(path: Path) -> Path:
    """The path from the root on. Raises ``BadPath`` for a relative one where the working directory was deleted."""
    try:
        return path.absolute()
    except OSError as error:
        raise BadPath(
            f"{os.fspath(path)!r} is relative to a working directory that is gone", hint="Give an absolute path"
        ) from error


def check_new_file(path: Path) -> None:
    """Raise ``BadPath`` unless a new file can be made there: nothing is ever overwritten."""
    try:
        there, parent = path.exists() or path.is_symlink(), path.parent.is_dir()
    except (OSError, ValueError) as error:
        raise BadPath(f"{os.fspath(path)!r:.200} can't be a path: {error}"[:400], hint="Give a shorter one") from error
    if there:
        raise BadPath(f"{os.fspath(path)!r} exists already", hint="Give a path that does not exist yet")
    if not parent:
        raise BadPath(f"{os.fspath(path.parent)!r} is not a directory", hint="Create it first")
