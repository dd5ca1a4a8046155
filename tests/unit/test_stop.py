"""How long a validation may take, and what does not count."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import cast

import pytest

from fk_core.sandbox.launch import Child
from fk_core.stop import Stop


@pytest.mark.parametrize("waits", [True, False])
def test_the_time_that_a_job_waits_for_the_device_does_not_count(waits: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    began, until = time.monotonic(), float("inf")

    def waited() -> float:
        """Long before, and from half a second on, until it goes on."""
        return 100.0 + max(0.0, min(time.monotonic(), until) - began - 0.5) * waits

    child = cast(Child, type("One", (), {"pid": process.pid})())
    with Stop(None, threading.Event()) as stop, stop.watching(child, 1.0, waited):
        assert stop.event.wait(1.5) is not waits
        until = time.monotonic()
        assert stop.event.wait(10.0), "it goes on, and its time is up all the same"
    process.kill()
    process.wait(10)
    assert stop.why == "late"
