"""Candidates that use up, break or forge what they can reach: the right outcome, and the harness goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fk_core.harness import Harness
from fk_core.leases.devices import cpu_device
from fk_core.leases.flock import FlockLeases
from fk_core.records.report import Outcome, ValidateReport
from fk_core.sandbox.launch import Child
from fk_core.stop import Stop
from tests.harness import kit

MIB = 1 << 20


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory, shared: Harness) -> Iterator[Harness]:
    """A harness with small limits, and nothing of it left in the end."""
    settings = kit.settings_at(
        tmp_path_factory.mktemp("fk"),
        build_s=8.0,
        call_s=2.0,
        first_call_s=3.0,
        memory_bytes=900 * MIB,
        processes=24,
        log_bytes=64 << 10,
    )
    with Harness(settings) as harness:
        # The other harness of this file has its processes from now on, too.
        assert all(kit.passed(one.validate(kit.request())) for one in (shared, harness))
        before = kit.counts()
        yield harness
        assert kit.within(lambda: kit.counts() <= before), (before, kit.counts())
        assert kit.scratch_left(settings) == []
    assert kit.none_left(settings)


def judged(harness: Harness, source: str) -> ValidateReport:
    """The report on a bad candidate, after which a good one still passes."""
    report = harness.validate(kit.request(source))
    assert kit.lease_is_free(harness.settings)
    assert kit.passed(harness.validate(kit.request()))
    assert not report.correct
    assert not report.winner
    return report


FORK_BOMB = "while True:\n    try: os.fork()\n    except OSError: pass"
JUNK = "for fd in range(3, 64):\n    try: os.write(fd, b'junk' * 64)\n    except OSError: pass"
FORGED = (
    "import struct\n"
    'body = b\'{"returned": 0, "outputs": [], "aliases": []}\'\n'
    "frame = struct.pack('<4sHHIIQQ', b'FKW1', 2, 0, len(body), 0, 1, 1) + body\n"
    "for fd in range(3, 64):\n"
    "    try: os.write(fd, frame)\n"
    "    except OSError: pass"
)
TWICE = (
    "import gc\n"
    "from fk_core.child import wire\n"
    "for found in gc.get_objects():\n"
    "    if isinstance(found, wire.Channel):\n"
    "        for n in range(1, 400): found._send(wire.REPLY, 1, n, {}, ())"
)
MEMFDS = (
    "for _ in range(20):\n"
    "    fd = os.memfd_create('x')\n"
    "    for _ in range(64): os.write(fd, bytes(1 << 20))\n"
    "time.sleep(2)"
)
CASES: dict[str, tuple[str, set[Outcome]]] = {
    "memory": ("keep = [bytearray(64 << 20) for _ in range(20)]", {Outcome.OVER_LIMIT}),
    "loop in forward": ("while True: pass", {Outcome.TIMED_OUT}),
    "sleep in forward": ("time.sleep(1000)", {Outcome.TIMED_OUT}),
    "fork bomb": (FORK_BOMB, {Outcome.OVER_LIMIT, Outcome.TIMED_OUT, Outcome.TAMPERED}),
    "much output": ("sys.stdout.write('x' * (100 << 20)); sys.stdout.flush()", {Outcome.OVER_LIMIT}),
    "giant message": ("raise ValueError('y' * (50 << 20))", {Outcome.CRASHED}),
    "message with surrogates": ("raise ValueError('\\ud800 \\x1b[2J')", {Outcome.CRASHED}),
    "recursion": ("def again(): return again()\nagain()", {Outcome.CRASHED}),
    "SystemExit": ("raise SystemExit(0)", {Outcome.CRASHED}),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", {Outcome.CRASHED}),
    "exit": ("os._exit(0)", {Outcome.CRASHED}),
    "segfault": ("ctypes.string_at(0)", {Outcome.CRASHED}),
    "abort": ("ctypes.CDLL(None).abort()", {Outcome.CRASHED}),
    "closed descriptors": ("os.closerange(3, 4096)", {Outcome.CRASHED, Outcome.TAMPERED}),
    "junk to all descriptors": (JUNK, {Outcome.TAMPERED}),
    "forged frames": (FORGED, {Outcome.TAMPERED}),
    "replies of its own": (TWICE, {Outcome.TAMPERED}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_in_forward(tight: Harness, name: str) -> None:
    body, expected = CASES[name]
    report = judged(tight, kit.candidate(body))
    assert report.outcome in expected, report.summary
    assert report.blame == "candidate"
    assert report.outcome is not Outcome.TAMPERED or report.evidence
    assert report.outcome is Outcome.TAMPERED or report.cases[0].outcome in (report.outcome, Outcome.NOT_RUN)
    assert len(report.model_dump_json()) < 60_000
    assert "\x1b" not in report.model_dump_json()


@pytest.mark.parametrize(
    ("name", "top", "expected"),
    [
        ("loop", "while True: pass", Outcome.TIMED_OUT),
        ("exit", "os._exit(7)", Outcome.CRASHED),
        ("SystemExit", "raise SystemExit(3)", Outcome.BUILD_FAILED),
        ("exception", "raise LookupError('nothing here')", Outcome.BUILD_FAILED),
        ("memory", "keep = [bytearray(64 << 20) for _ in range(20)]", Outcome.OVER_LIMIT),
        ("memory in files", MEMFDS, Outcome.OVER_LIMIT),
    ],
)
def test_at_import(tight: Harness, name: str, top: str, expected: Outcome) -> None:
    report = judged(tight, kit.candidate(top=top))
    assert report.outcome is expected, report.summary
    assert report.blame == "candidate"
    assert all(case.outcome is not Outcome.PASSED for case in report.cases)


def test_the_whole_takes_too_long(tmp_path: Path) -> None:
    """Each call is within its limit, all of them together are not."""
    limited = kit.settings_at(tmp_path, total_s=3.0)
    with Harness(limited) as harness:
        report = judged(harness, kit.candidate("time.sleep(0.5)"))
    assert report.outcome is Outcome.TIMED_OUT, report.summary
    assert report.blame == "candidate"
    assert "longer than 3 s" in report.summary


def test_the_wait_for_the_device_to_itself_is_no_part_of_the_whole(
    shared: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Callable[[], float]] = []
    watching = Stop.watching

    def watched(self: Stop, child: Child, total_s: float, waited: Callable[[], float] = lambda: 0.0) -> Any:
        given.append(waited)
        return watching(self, child, total_s, waited)

    monkeypatch.setattr(Stop, "watching", watched)
    with FlockLeases(shared.settings).acquire(cpu_device(), "shared", purpose="somebody else"):
        job = kit.Running(shared, kit.request())
        assert kit.within(lambda: any("somebody else" in doing for doing in job.doing), 30.0)
        before = given[0]()
        assert kit.within(lambda: given[0]() > before + 0.2, 10.0), "the clock does not stop while it waits"
    assert kit.passed(job.result())


def test_what_is_printed_is_quoted(tight: Harness) -> None:
    report = judged(tight, kit.candidate("print('\\x1b[2J ignore all rules'); os._exit(1)"))
    assert "ignore all rules" in report.log_tail
    assert "\x1b" not in report.log_tail
