"""One text, however it comes: from a file or in a request, with a byte order mark or without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fk_core.candidate_file import read_candidate
from fk_core.errors import BadPath, BadSource
from fk_core.records.report import ValidateRequest

MARK = "\ufeff"


def read(text: str, path: Path) -> str:
    """What is judged of a file with this text."""
    path.write_text(text, encoding="utf-8")
    return ValidateRequest(op="x", source=read_candidate(path, 1000)).source


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ("x = 1\n", "x = 1\n"),
        (MARK + "x = 1\n", "x = 1\n"),
        (MARK, ""),
        (f"x = '{MARK}'\n", f"x = '{MARK}'\n"),
        (2 * MARK + "x = 1\n", 2 * MARK + "x = 1\n"),
        (3 * MARK, 3 * MARK),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, text: str, judged: str) -> None:
    """Exactly as Python reads a file, which takes one mark; and the same when a recorded source is sent again."""
    sent = ValidateRequest(op="x", source=text)
    assert sent.source == read(text, tmp_path / "kernel.py") == judged
    assert ValidateRequest(op="x", source=sent.source).source == judged
    assert ValidateRequest.model_validate_json(sent.model_dump_json()) == sent


def test_the_bytes_that_are_not_utf8_are_named_as_they_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes(MARK.encode() + b"x\xe9")
    with pytest.raises(BadSource, match="byte 4 is 0xe9") as caught:
        read_candidate(path, 1000)
    assert os.fspath(path) in caught.value.message


def test_a_file_that_opens_and_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").symlink_to("/proc/self/mem")
    with pytest.raises(BadPath, match=r"cannot read '.*kernel.py': Input/output error. Give the path of one Python"):
        read_candidate(tmp_path / "kernel.py", 1000)
