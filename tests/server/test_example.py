"""The program that users start from, against a real server process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.wire_client import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "python_client.py"
KERNEL = """
import torch
import torch.nn as nn


class Softmax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.softmax(x.float(), dim=self.dim).to(x.dtype){}
"""


def _run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "FK_HOME": str(home), "FK_LOCK_DIR": str(home / "locks"), "FK_DEVICE": "cpu"}
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.run(
        command, env=environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(("end", "code", "said"), [("", 0, "PASSED"), (" * 1.1", 1, "WRONG_VALUES")])
def test_the_verdict_decides_and_the_environment_is_passed_on(tmp_path: Path, end: str, code: int, said: str) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.format(end), encoding="utf-8")
    done = _run(tmp_path / "home", "softmax", str(tmp_path / "kernel.py"))
    assert done.returncode == code, done.stderr
    assert said in done.stdout
    assert list((tmp_path / "home" / "journal").rglob("*")), "the attempt is in the FK_HOME that was asked for"


def test_a_wrong_request_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("x = 1", encoding="utf-8")
    done = _run(tmp_path / "home", "soft", str(tmp_path / "kernel.py"))
    assert done.returncode == 2
    assert "soft" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_said_in_a_line(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "nope.py").write_bytes(content)
    done = _run(tmp_path / "home", "rms_norm", str(tmp_path / "nope.py"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "can't be read" in done.stderr
    assert len(done.stderr.splitlines()) == 1
