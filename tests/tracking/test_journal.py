"""The journal: nothing acknowledged is ever lost, nothing half-written is ever read."""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fk_core import filelock
from fk_core.errors import JournalError, UnknownAttempt
from fk_core.records.report import Machine, Outcome, Speed, ValidateReport, ValidateRequest
from fk_core.settings import Settings
from fk_core.tracking.journal import Journal
from fk_core.tracking.ledger import Ledger, Position, write_file

SOURCE = "import torch\n\nclass RMSNorm(torch.nn.Module):\n    pass  # größer, 数\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", lock_dir=tmp_path / "locks")


@pytest.fixture
def journal(settings: Settings) -> Journal:
    return Journal(settings)


def request(source: str = SOURCE, op: str = "rms_norm") -> ValidateRequest:
    return ValidateRequest(op=op, source=source, cases="quick", allow=["vllm"], client="test")


def report(outcome: Outcome = Outcome.PASSED, speedup: float | None = None, op: str = "rms_norm") -> ValidateReport:
    return ValidateReport(
        op=op,
        level=1,
        outcome=outcome,
        summary=f"{outcome}",
        speed=Speed(speedup=speedup),
        machine=Machine(device="cpu"),
    )


def in_child(action: Callable[[], None]) -> int:
    """Exit status of a forked child that runs ``action``."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException as e:  # noqa: BLE001 - the parent sees only the exit status; the text helps
            sys.stderr.write(f"{type(e).__name__}: {e}\n")
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def events_file(settings: Settings) -> Path:
    return settings.journal_dir / "events.jsonl"


def test_what_is_written_is_read_again_also_after_a_restart(journal: Journal, settings: Settings) -> None:
    attempt_id = journal.begin(request(), "identity")
    assert journal.read(attempt_id) == (request(), None)
    assert journal.attempt(attempt_id).running
    answer = report(speedup=1.5)
    journal.finish(attempt_id, answer)
    for reader in (journal, Journal(settings)):
        assert reader.read(attempt_id) == (request(), answer)
        assert reader.find_identical("identity") == attempt_id
        line = reader.attempt(attempt_id)
        assert (line.op, line.outcome, line.speedup, line.device) == ("rms_norm", Outcome.PASSED, 1.5, "cpu")
        assert (line.client, line.running, line.interrupted) == ("test", False, False)


def test_another_journal_sees_what_this_one_writes(journal: Journal, settings: Settings) -> None:
    other = Journal(settings)
    assert other.list() == []
    attempt_id = journal.begin(request(), "i")
    assert [a.attempt_id for a in other.list()] == [attempt_id]
    other.finish(attempt_id, report())
    assert journal.find_identical("i") == attempt_id


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_what_speaks_of_the_candidate_is_reused(journal: Journal, outcome: Outcome) -> None:
    journal.finish(journal.begin(request(), "i"), report(outcome))
    never = {"UNTESTABLE", "HARNESS_FAULT", "GPU_FAULT", "CONTENDED", "NO_GPU_IN_TIME", "NOT_RUN", "CANCELLED"}
    assert (journal.find_identical("i") is None) == (outcome.value in never)


def test_the_latest_usable_answer_is_found(journal: Journal) -> None:
    ids = [journal.begin(request(), "i") for _ in range(4)]
    journal.finish(ids[2], report(Outcome.WRONG_VALUES))
    journal.finish(ids[0], report())
    journal.finish(ids[3], report(Outcome.GPU_FAULT))
    assert journal.find_identical("i") == ids[2]
    assert journal.find_identical("other") is None


def test_an_answer_whose_report_is_gone_is_not_reused(journal: Journal) -> None:
    attempt_id = journal.begin(request(), "i")
    journal.finish(attempt_id, report())
    journal._file("reports", attempt_id).unlink()
    assert journal.find_identical("i") is None
    with pytest.raises(JournalError, match="could not be read"):
        journal.read(attempt_id)


def test_the_first_answer_stands(journal: Journal, settings: Settings) -> None:
    attempt_id = journal.begin(request(), "i")
    journal.finish(attempt_id, report())
    for writer in (journal, Journal(settings)):
        with pytest.raises(JournalError, match="finished already"):
            writer.finish(attempt_id, report(Outcome.CRASHED))
    assert journal.attempt(attempt_id).outcome is Outcome.PASSED


def test_of_two_answers_at_once_one_stands(
    journal: Journal, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_id = journal.begin(request(), "i")
    real = journal._ledger.writing

    def overtaken() -> AbstractContextManager[int]:
        Journal(settings).finish(attempt_id, report())
        return real()

    monkeypatch.setattr(journal._ledger, "writing", overtaken)
    with pytest.raises(JournalError, match="finished already"):
        journal.finish(attempt_id, report(Outcome.CRASHED))
    assert journal.read(attempt_id)[1] == report()


def test_unknown_attempts_name_known_ones(journal: Journal) -> None:
    with pytest.raises(UnknownAttempt, match="empty"):
        journal.read("a-20260101-000000-000000")
    known = journal.begin(request(), "i")
    for unknown in ("a-1", "../../../etc/passwd", ""):
        with pytest.raises(UnknownAttempt, match=known):
            journal.read(unknown)
        with pytest.raises(UnknownAttempt):
            journal.finish(unknown, report())


def test_attempts_of_a_dead_process_are_interrupted(journal: Journal) -> None:
    mine = journal.begin(request(), "mine")
    assert in_child(lambda: void(journal.begin(request(), "theirs"))) == 0
    (gone,) = journal.interrupted()
    assert (gone.identity, gone.running) == ("theirs", False)
    assert journal.attempt(mine).running
    journal.finish(gone.attempt_id, report(Outcome.CANCELLED))
    assert journal.interrupted() == []


def void(_: object) -> None:
    pass


def test_list_latest_and_best(journal: Journal) -> None:
    def add(op: str, outcome: Outcome, speedup: float | None) -> str:
        attempt_id = journal.begin(request(op=op), "i")
        journal.finish(attempt_id, report(outcome, speedup, op))
        return attempt_id

    slow = add("rms_norm", Outcome.PASSED, 0.9)
    untimed = add("rms_norm", Outcome.PASSED, None)
    fast = add("rms_norm", Outcome.PASSED, 2.0)
    wrong = add("rms_norm", Outcome.WRONG_VALUES, 9.0)
    other = add("softmax", Outcome.PASSED, 3.0)
    ids = [a.attempt_id for a in journal.list()]
    assert ids == [other, wrong, fast, untimed, slow]
    assert [a.attempt_id for a in journal.list("rms_norm", 2)] == [wrong, fast]
    assert [a.attempt_id for a in journal.list("rms_norm", best=True)] == [fast, slow, untimed]
    assert journal.list(limit=0) == []


def test_the_same_source_is_stored_once_and_checked(journal: Journal, settings: Settings) -> None:
    first, second = journal.begin(request(), "a"), journal.begin(request(), "b")
    (stored,) = (settings.journal_dir / "sources").rglob("*.py")
    assert stored.read_text("utf-8") == SOURCE
    assert journal.read(second)[0].source == SOURCE
    stored.write_text(SOURCE.replace("pass", "PASS"), "utf-8")
    with pytest.raises(JournalError, match="was changed"):
        journal.read(first)


def test_a_source_file_cut_short_by_hand_is_written_anew(journal: Journal, settings: Settings) -> None:
    journal.begin(request(), "a")
    (stored,) = (settings.journal_dir / "sources").rglob("*.py")
    stored.write_text("", "utf-8")
    assert journal.read(journal.begin(request(), "b"))[0].source == SOURCE


def test_lone_surrogates_are_kept(journal: Journal, settings: Settings) -> None:
    asked = request("x = '\ud800'").model_copy(update={"path": "/tmp/\udcff.py"})
    answer = report(Outcome.BUILD_FAILED).model_copy(update={"log_tail": "\udc80", "summary": "\udc80"})
    attempt_id = journal.begin(asked, "i")
    journal.finish(attempt_id, answer)
    assert Journal(settings).read(attempt_id) == (asked, answer)


def test_a_report_that_json_cannot_say_is_refused_whole(journal: Journal, settings: Settings) -> None:
    attempt_id = journal.begin(request(), "i")
    with pytest.raises(JournalError, match="JSON cannot say"):
        journal.finish(attempt_id, report().model_copy(update={"speed": Speed(ci95=(float("nan"), 1.0))}))
    assert journal.attempt(attempt_id).outcome is None
    journal.finish(attempt_id, report())


def test_reports_of_another_version_and_damaged_ones_say_so(journal: Journal) -> None:
    attempt_id = journal.begin(request(), "i")
    journal.finish(attempt_id, report())
    stored = journal._file("reports", attempt_id)
    text = stored.read_text("ascii")
    stored.write_text(text.replace('{"op"', '{"colour": 1, "op"', 1), "ascii")
    with pytest.raises(JournalError, match="another version"):
        journal.read(attempt_id)
    stored.write_text(text[:-10], "ascii")
    with pytest.raises(JournalError, match="damaged"):
        journal.read(attempt_id)


def test_everything_is_private(journal: Journal, settings: Settings) -> None:
    old = os.umask(0)
    try:
        journal.finish(journal.begin(request(), "i"), report())
    finally:
        os.umask(old)
    for path in (settings.journal_dir, *settings.journal_dir.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_ids_are_unique_and_sort_by_time(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [journal.begin(request(), "i") for _ in range(30)]
    assert len(set(ids)) == 30
    real = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda: real(time.time() + 5))
    later = journal.begin(request(), "i")
    assert all(i < later for i in ids)
    assert all(len(i) == len("a-20261129-203015-7f3k2q") for i in ids)


@pytest.mark.parametrize(
    "tail", [b"{", b'{"event":"begin","attempt":"a-x"', b"\x00" * 5000, b"x" * 200_000, b'{"event":"finish"}']
)
def test_a_torn_last_line_is_passed_over_and_mended(journal: Journal, settings: Settings, tail: bytes) -> None:
    first = journal.begin(request(), "i")
    with events_file(settings).open("ab") as file:
        file.write(tail)
    for reader in (journal, Journal(settings)):
        assert [a.attempt_id for a in reader.list()] == [first]
    second = journal.begin(request(), "i")
    for reader in (journal, Journal(settings)):
        assert [a.attempt_id for a in reader.list()] == [second, first]
    assert all(json.loads(line) for line in events_file(settings).read_bytes().splitlines())


def test_a_file_of_one_torn_line_is_mended(journal: Journal, settings: Settings) -> None:
    settings.journal_dir.mkdir(parents=True)
    events_file(settings).write_bytes(b'{"event": "be')
    attempt_id = journal.begin(request(), "i")
    assert [a.attempt_id for a in journal.list()] == [attempt_id]


def test_events_of_later_versions_are_passed_over(journal: Journal, settings: Settings) -> None:
    first = journal.begin(request(), "i")
    with events_file(settings).open("ab") as file:
        file.write(b'{"event":"promoted","attempt":"' + first.encode() + b'"}\n[1]\n')
        file.write(b'{"event":"finish","attempt":"' + first.encode() + b'","outcome":"SPLENDID"}\n')
    assert journal.attempt(first).outcome is None


def test_a_journal_that_was_replaced_is_read_anew(journal: Journal, settings: Settings) -> None:
    kept = journal.begin(request(), "kept")
    text = events_file(settings).read_bytes()
    journal.begin(request(), "lost")
    write_file(events_file(settings), text)
    assert [a.attempt_id for a in journal.list()] == [kept]
    events_file(settings).unlink()
    assert journal.list() == []


def test_a_line_that_was_read_and_then_cut_off_is_forgotten(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    with ledger.writing() as fd:
        ledger.append(fd, {"n": 1})
        ledger.append(fd, {"n": 2})
    position, _, _ = ledger.read_from(Position())
    with ledger.writing() as fd:
        os.ftruncate(fd, len(b'{"n":1}\n'))
        ledger.append(fd, {"n": 3})
    position, again, events = ledger.read_from(position)
    assert (again, events) == (True, [{"n": 1}, {"n": 3}])
    assert ledger.read_from(position) == (position, False, [])


def test_a_failed_sync_takes_the_line_back(
    journal: Journal, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = journal.begin(request(), "i")
    before = events_file(settings).read_bytes()

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(JournalError, match="Input/output error"):
        journal.begin(request(), "i")
    assert events_file(settings).read_bytes() == before
    monkeypatch.undo()
    assert [a.attempt_id for a in journal.list()] == [first]


def test_a_file_size_limit_corrupts_nothing(journal: Journal, settings: Settings) -> None:
    """The limit falls at every place: in the source, in the request, and within the event's line."""
    kept = journal.begin(request(), "i")
    size = events_file(settings).stat().st_size
    failed = 0

    def limited(limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(JournalError, match="File too large"):
            journal.begin(request(SOURCE + f"# {limit}"), "i")

    for limit in (0, 10, 100, size - 1, size, size + 1, size + 100):
        failed += in_child(lambda limit=limit: limited(limit)) == 0
        assert events_file(settings).stat().st_size == size
        assert [p.name for p in settings.journal_dir.rglob(".*")] == []
    assert failed == 7
    assert [a.attempt_id for a in journal.list()] == [kept]
    journal.finish(kept, report())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_corrupts_nothing(settings: Settings) -> None:
    settings.home.mkdir(parents=True)

    def fill_up() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        new_mounts, private = 0x00020000, (1 << 18) | (1 << 14)
        if libc.unshare(new_mounts) or libc.mount(None, b"/", None, private, None):
            os._exit(77)
        if libc.mount(b"tmpfs", os.fsencode(settings.home), b"tmpfs", 0, b"size=192k"):
            os._exit(77)
        journal = Journal(settings)
        acknowledged: list[str] = []

        def begin_many() -> None:
            for n in range(1000):
                acknowledged.append(journal.begin(request(SOURCE + "#" * 3000 + str(n)), "i"))

        def finish_all() -> None:
            for attempt_id in acknowledged:
                journal.finish(attempt_id, report())

        with pytest.raises(JournalError, match="No space left") as caught:
            begin_many()
        assert "free space" in caught.value.hint
        with pytest.raises(JournalError, match="No space left"):
            finish_all()
        fresh = Journal(settings)
        assert {a.attempt_id for a in fresh.list(limit=10_000)} == set(acknowledged)
        for attempt_id in acknowledged:
            fresh.read(attempt_id)
        for stored in list((settings.journal_dir / "sources").rglob("*.py"))[:3]:
            stored.unlink()
        fresh.finish(fresh.begin(request("x = 1"), "after"), report())
        assert fresh.find_identical("after")

    code = in_child(fill_up)
    if code == 77:
        pytest.skip("no mounts are allowed here")
    assert code == 0


def test_a_journal_that_cannot_be_written_says_so(settings: Settings) -> None:
    settings.home.mkdir()
    settings.journal_dir.write_text("a file where the folder should be", "utf-8")
    with pytest.raises(JournalError, match="FK_HOME"):
        Journal(settings).begin(request(), "i")


def test_a_writer_that_hangs_is_named(journal: Journal, settings: Settings) -> None:
    journal.begin(request(), "i")
    journal._ledger = Ledger(events_file(settings), lock_s=0.05)
    with Ledger(events_file(settings)).writing(), pytest.raises(JournalError, match="stayed locked"):
        journal.begin(request(), "i")


def test_twelve_processes_write_at_once(settings: Settings) -> None:
    def write(n: int) -> None:
        journal = Journal(settings)
        for k in range(50):
            attempt_id = journal.begin(request(f"x = {n * 100 + k}"), f"{n}/{k}")
            journal.finish(attempt_id, report(speedup=float(n * 100 + k)))

    pids = []
    for n in range(12):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                write(n)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids] == [0] * 12
    journal = Journal(settings)
    attempts = journal.list(limit=10_000)
    assert len({a.attempt_id for a in attempts}) == 600
    for attempt in attempts:
        number = int(attempt.speedup or 0.0)
        assert attempt.identity == f"{number // 100}/{number % 100}"
        asked, answer = journal.read(attempt.attempt_id)
        assert asked.source == f"x = {number}"
        assert answer is not None
        assert answer.speed.speedup == number


def test_threads_share_one_journal(journal: Journal) -> None:
    def write(n: int) -> None:
        for k in range(10):
            journal.finish(journal.begin(request(), f"{n}/{k}"), report())

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(journal.list(limit=1000)) == 60
    assert all(journal.find_identical(f"{n}/{k}") for n in range(6) for k in range(10))


def test_kills_at_random_instants_lose_nothing_that_was_acknowledged(settings: Settings, tmp_path: Path) -> None:
    draw = random.Random(11)
    log = os.open(tmp_path / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write() -> None:
        journal = Journal(settings)
        while True:
            attempt_id = journal.begin(request(f"x = {os.urandom(4).hex()!r}"), "i")
            os.write(log, f"begun {attempt_id}\n".encode())
            journal.finish(attempt_id, report())
            os.write(log, f"finished {attempt_id}\n".encode())

    for _ in range(25):
        pids = [pid for pid in (os.fork() for _ in range(3)) if pid or write()]
        for pid in pids:
            time.sleep(draw.random() * 0.03)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    os.close(log)
    journal = Journal(settings)
    lines = (tmp_path / "acknowledged").read_text("ascii").split("\n")[:-1]
    assert len(lines) > 25
    for line in lines:
        word, attempt_id = line.split()
        _, answer = journal.read(attempt_id)
        assert answer is not None or word == "begun"
    for attempt in journal.list(limit=100_000):
        assert journal.read(attempt.attempt_id)[0].source.startswith("x = ")
        assert not attempt.running
    journal.finish(journal.begin(request(), "after"), report())
    events = events_file(settings).read_bytes()
    assert events.endswith(b"\n")
    assert all(json.loads(line) for line in events.splitlines())


def test_a_forked_child_does_not_keep_the_lock(journal: Journal, settings: Settings) -> None:
    journal.begin(request(), "i")
    gate, opened = os.pipe()
    with Ledger(events_file(settings)).writing():
        pid = os.fork()
        if pid == 0:
            os.close(opened)
            os.read(gate, 1)
            os._exit(0)
    journal._ledger = Ledger(events_file(settings), lock_s=1.0)
    journal.begin(request(), "i")
    os.close(opened)
    os.waitpid(pid, 0)
    os.close(gate)


def test_lookup_in_a_long_history_reads_it_once(
    journal: Journal, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prints what the first and the next look-ups cost among ten thousand attempts."""
    sample = journal.begin(request(), "sample")
    journal.finish(sample, report())
    begin, finish = events_file(settings).read_text("ascii").splitlines()
    with events_file(settings).open("a", encoding="ascii") as file:
        for n in range(10_000):
            attempt_id = f"a-20260101-000000-{n:06d}"
            file.write(begin.replace(sample, attempt_id).replace('"sample"', f'"old {n}"') + "\n")
            file.write(finish.replace(sample, attempt_id) + "\n")
    start = time.perf_counter()
    journal.find_identical("old 77")
    first_s = time.perf_counter() - start
    read = 0
    real = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = real(fd, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    start = time.perf_counter()
    assert journal.find_identical("sample") == sample
    next_s = time.perf_counter() - start
    assert read < 2000, "a look-up must not read the history again"
    sys.stderr.write(f"first look-up {first_s * 1e3:.0f} ms, next {next_s * 1e3:.2f} ms\n")


def test_lock_busy_names_the_file(tmp_path: Path) -> None:
    assert str(filelock.LockBusy(tmp_path / "f", [3])) == f"{tmp_path / 'f'} stayed locked by pid 3"
