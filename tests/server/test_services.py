from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fk_core.errors import HarnessError
from fk_server.roots import Roots
from fk_server.services import Services
from tests.server.fakes import FakeHarness, settings_in


def test_a_second_close_waits_for_the_first(tmp_path: Path) -> None:
    """Whoever exits after close must not exit in the middle of another thread's close."""
    harness = FakeHarness(settings_in(tmp_path))
    inside = threading.Event()
    closed = 0

    def slow() -> None:
        nonlocal closed
        inside.set()
        time.sleep(0.3)
        closed += 1

    harness.close = slow  # type: ignore[method-assign]
    services = Services(harness, Roots(()))  # type: ignore[arg-type]
    first = threading.Thread(target=services.close)
    first.start()
    assert inside.wait(10)
    services.close()
    assert closed == 1
    first.join(10)
    services.close()
    assert closed == 1


def test_a_server_that_ends_at_once_warms_nothing(tmp_path: Path) -> None:
    harness = FakeHarness(settings_in(tmp_path))
    services = Services(harness, Roots(()))  # type: ignore[arg-type]
    services.open()
    services.close()
    assert not harness.warmed.wait(1.0)


def test_a_server_measures_a_doubtful_error_again(tmp_path: Path) -> None:
    harness = FakeHarness(settings_in(tmp_path))
    services = Services(harness, Roots(()))  # type: ignore[arg-type]
    services.open()
    assert harness.measured_again.wait(10.0)
    services.close()


@pytest.mark.parametrize("closing", [False, True])
def test_what_goes_wrong_while_measuring_again_is_logged_unless_the_server_ends(
    closing: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = FakeHarness(settings_in(tmp_path))
    services = Services(harness, Roots(()))  # type: ignore[arg-type]
    ended = harness.measure_again

    def measured() -> list[str]:
        if closing:
            services.close()
        return ended()

    harness.measure_again = measured  # type: ignore[method-assign]
    harness.raises["measure_again"] = HarnessError("the harness is closed")
    services._warm()
    assert ("could not be measured again" in caplog.text) is not closing
    assert "warming up failed" not in caplog.text
    caplog.clear()
    harness.raises.clear()
    harness.problems = ["CANCELLED: the harness was closed meanwhile"]
    services._warm()
    assert ("measured again: CANCELLED" in caplog.text) is not closing
