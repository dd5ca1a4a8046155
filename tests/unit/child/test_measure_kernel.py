"""The fused measurement of a GPU judge says what the plain one says: here by the interpreter, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]


def test_fused_and_plain_measurement_agree() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.child.measure_probe"],
        env=environment,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
