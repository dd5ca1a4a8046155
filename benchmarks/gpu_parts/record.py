"""What a run has found, one JSON line a step, on disk before the next step begins."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RECORDS, REPORTS, AA_ROWS = "records.jsonl", "reports.jsonl", "aa.jsonl"

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    """Add a line that survives whatever happens to this process or machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, default=str).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, b"\n" + line if torn else line)
        os.fsync(fd)
    finally:
        os.close(fd)


def read(path: Path) -> list[Row]:
    """All whole lines; a line that was cut off by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def add(out: Path, part: str, step: str, ok: bool | None, **more: Any) -> Row:
    """Record one step. ``ok`` None: nothing can be said, for example because there was no time."""
    row = {"part": part, "step": step, "ok": ok, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), **more}
    append(out / RECORDS, row)
    return row


def latest(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """The last word on each step, in the order in which steps were first seen."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        if "part" in row and "step" in row:
            found[row["part"], row["step"]] = row
    return found


def pack(out: Path, archive: Path) -> None:
    """Put the folder's files into one archive, replaced whole, so that there is a readable one at any moment."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    fd, draft = tempfile.mkstemp(dir=archive.parent, prefix=f".{archive.name}")
    os.close(fd)
    try:
        with tarfile.open(draft, "w:gz", compresslevel=3) as tar:
            tar.add(out, arcname=".", filter=lambda info: None if ".tar.gz" in info.name else info)
        os.chmod(draft, 0o644)
        os.replace(draft, archive)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
