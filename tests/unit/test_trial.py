"""What the parent makes of whatever a candidate's process sends, through a real socket and nothing of a sandbox."""

from __future__ import annotations

import array
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fk_core.child import wire
from fk_core.domain import Domain
from fk_core.errors import Cancelled
from fk_core.records.claims import CallClaim, Findings, GatedTurn, StateClaim
from fk_core.records.report import Outcome
from fk_core.sandbox.launch import Child
from fk_core.settings import Limits, Settings
from fk_core.trial import CandidateFault, Trial, explain
from tests.descriptors import descriptors

Play = Callable[["Stage"], None]
TURN = {"do": "turn", "case": "op/a"}
GOOD_TURN = {"full_us": [2.0], "gate_us": [1.0], "span_us": 9.0, "calls": 3}


class Stage:
    """The candidate's end of the channel, in a thread: raw bytes, no channel object."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.nonce = self.seq = 0
        self.body: dict[str, Any] = {}

    def hear(self) -> dict[str, Any]:
        """Read one request."""
        head = self._exactly(wire.HEADER.size)
        _, _, _, length, _, self.nonce, self.seq = wire.HEADER.unpack(head)
        self.body = json.loads(self._exactly(length))
        return self.body

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def frame(self, raw: bytes, **other: Any) -> bytes:
        """A right frame around ``raw``, but for what ``other`` says of its header."""
        head: dict[str, Any] = {
            "magic": wire.MAGIC,
            "kind": wire.REPLY,
            "flags": 0,
            "length": len(raw),
            "fds": 0,
            "nonce": self.nonce,
            "seq": self.seq,
        }
        return wire.HEADER.pack(*(head | other).values()) + raw

    def say(self, body: Any, **other: Any) -> None:
        self.sock.sendall(self.frame(json.dumps(body).encode(), **other))

    def send_fds(self, data: bytes, fds: list[int]) -> None:
        self.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


class FakeChild(Child):
    """The real parent's side of a child whose process is a thread of this one."""

    def __init__(self, play: Play) -> None:
        super().__init__(None, "candidate", "process", 4096)  # type: ignore[arg-type]
        self.killed = False
        self._started.set()
        self._resting = threading.Event()
        self._play = play
        self._thread = threading.Thread(target=self._perform, daemon=True)
        self._thread.start()

    def _perform(self) -> None:
        stage = Stage(self._theirs)
        try:
            while True:
                stage.hear()
                self._resting.clear()
                try:
                    self._play(stage)
                finally:
                    self._resting.set()
        except (EOFError, OSError):
            pass

    def rest(self) -> None:
        """Return when what was played for the last answer is over: until then the stage may hold descriptors."""
        assert self._resting.wait(10.0)

    def die(self, status: int = 0, limit: str | None = None, output: str = "") -> None:
        """The process ends by itself."""
        self._tail += output.encode()
        self.output_bytes += len(output)
        self._exit = {"by_itself": True, "status": status, "limit": limit}
        self._gone.set()
        self._theirs.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self.killed = True
        if self._exit is None:
            self._exit = {"by_itself": False, "status": 9, "limit": None}
        self._gone.set()
        self.channel.close()

    def end(self) -> None:
        self.kill()
        self._thread.join(5.0)
        assert not self._thread.is_alive()
        self._close_theirs()
        self._line.close()
        os.close(self._log)


Make = Callable[..., Trial]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Make]:
    children: list[FakeChild] = []

    def make(play: Play, *, call_s: float = 10.0, cancel: threading.Event | None = None) -> Trial:
        child = FakeChild(play)
        children.append(child)
        base = Settings(home=tmp_path, lock_dir=tmp_path)
        settings = replace(base, limits=Limits(call_s=call_s, build_s=call_s, first_call_s=call_s))
        judge: Any = SimpleNamespace(desk=SimpleNamespace(cpu=True))
        return Trial(child, tmp_path, judge, settings, cancel)

    before = descriptors()
    yield make
    for child in children:
        child.end()
    assert not descriptors() - before


def left_open(made: Trial, before: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Descriptors that were not there before. The stage has its own in this same process, until it comes to rest."""
    made.child.rest()  # type: ignore[attr-defined]
    return descriptors() - before


def fault(made: Trial, body: dict[str, Any] | None = None, claim: Any = GatedTurn) -> CandidateFault:
    with pytest.raises(CandidateFault) as caught:
        made.ask(body or TURN, claim)
    return caught.value


def is_forged(found: CandidateFault, made: Trial) -> None:
    assert found.outcome is Outcome.TAMPERED
    assert [e.kind for e in found.evidence] == ["protocol"]
    assert found.evidence[0].instead
    assert made.child.killed  # type: ignore[attr-defined]
    assert not made.child.alive()


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_honest_answer(trial: Make) -> None:
    made = trial(lambda stage: stage.say(GOOD_TURN))
    turn = made.ask(TURN, GatedTurn)
    assert (turn.full_us, turn.calls) == ([2.0], 3)
    assert made.child.alive()
    assert made.detail["candidate turn"] > 0


def test_several_requests_at_once_are_answered_in_order(trial: Make) -> None:
    made = trial(lambda stage: stage.say({} if stage.body["do"] == "context" else {"findings": []}))
    made.end_load(made.begin_load(["RMSNorm"]))
    assert made.child.alive()


HEADERS: dict[str, dict[str, Any]] = {
    "another nonce": {"nonce": 1},
    "an old sequence": {"seq": 0},
    "a request in place of an answer": {"kind": wire.REQUEST},
    "an unknown kind": {"kind": 9},
    "flags": {"flags": 1},
    "magic": {"magic": b"FKW2"},
    "a huge body announced": {"length": wire.MAX_BODY + 1},
    "the largest number as length": {"length": 2**32 - 1},
    "descriptors that never come": {"fds": 3},
    "too many descriptors announced": {"fds": wire.MAX_FDS + 1},
}


@pytest.mark.parametrize("name", HEADERS)
def test_forged_headers(trial: Make, name: str) -> None:
    made = trial(lambda stage: stage.say(GOOD_TURN, **HEADERS[name]))
    is_forged(fault(made), made)


BODIES: dict[str, bytes] = {
    "not JSON": b"hello",
    "empty": b"",
    "pickle": b"\x80\x04\x95\x00.",
    "not UTF-8": b'{"full_us": "\xff"}',
    "UTF-16": json.dumps(GOOD_TURN).encode("utf-16"),
    "an array": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "two objects": b"{}{}",
    "cut off": b'{"full_us": [1.0',
    "NaN": b'{"full_us": [NaN], "gate_us": [1.0], "span_us": 9.0, "calls": 3}',
    "Infinity": b'{"full_us": [2.0], "gate_us": [1.0], "span_us": Infinity, "calls": 3}',
    "minus Infinity": b'{"full_us": [2.0], "gate_us": [-Infinity], "span_us": 9.0, "calls": 3}',
    "an overflowing float": b'{"full_us": [1e999], "gate_us": [1.0], "span_us": 9.0, "calls": 3}',
    "nested too deep": b'{"a":' * 60000 + b"1" + b"}" * 60000,
    "an endless number": b'{"full_us": [' + b"9" * 5000 + b'], "gate_us": [1.0], "span_us": 9.0, "calls": 3}',
    "an unknown field": json.dumps(GOOD_TURN | {"speedup": 2}).encode(),
    "a missing field": b'{"full_us": [2.0], "gate_us": [1.0], "span_us": 9.0}',
    "text for a number": json.dumps(GOOD_TURN | {"span_us": "9.0"}).encode(),
    "truth for a number": json.dumps(GOOD_TURN | {"span_us": True}).encode(),
    "a float for a count": json.dumps(GOOD_TURN | {"calls": 3.5}).encode(),
    "no time at all": json.dumps(GOOD_TURN | {"span_us": 0}).encode(),
    "negative": json.dumps(GOOD_TURN | {"full_us": [-1.0]}).encode(),
    "too long a list": json.dumps(GOOD_TURN | {"full_us": [1.0] * 65}).encode(),
    "no calls": json.dumps(GOOD_TURN | {"calls": 0}).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_forged_bodies(trial: Make, name: str) -> None:
    made = trial(lambda stage: stage.sock.sendall(stage.frame(BODIES[name])))
    is_forged(fault(made), made)


CALLS: dict[str, dict[str, Any]] = {
    "aliases of three": {"outputs": [], "aliases": [[1, 2, 3]]},
    "text as shape": {"outputs": [{"shape": "4096"}], "aliases": []},
    "too many outputs": {"outputs": [{}] * 65, "aliases": []},
    "a problem of megabytes": {"outputs": [{"problem": "x" * 100_000}], "aliases": []},
    "a lone surrogate": {"outputs": [{"problem": "\ud800"}], "aliases": []},
}


@pytest.mark.parametrize("name", CALLS)
def test_forged_descriptions(trial: Make, name: str) -> None:
    made = trial(lambda stage: stage.say(CALLS[name]))
    is_forged(fault(made, {"do": "call"}, CallClaim), made)


@pytest.mark.parametrize(
    "claim", [{"outputs": [], "aliases": [[-5, 0]]}, {"outputs": [], "aliases": [], "earlier": [-9]}]
)
def test_negative_indices_never_reach_the_judge(trial: Make, claim: dict[str, Any]) -> None:
    made = trial(lambda stage: stage.say(claim))
    is_forged(fault(made, {"do": "call"}, CallClaim), made)


def test_a_second_answer_is_found_at_the_next_question(trial: Make) -> None:
    def twice(stage: Stage) -> None:
        stage.say(GOOD_TURN)
        stage.say(GOOD_TURN)

    made = trial(twice)
    made.ask(TURN, GatedTurn)
    is_forged(fault(made), made)


def test_an_answer_before_the_question(trial: Make) -> None:
    made = trial(lambda stage: stage.say(GOOD_TURN))
    made.child._theirs.sendall(Stage(made.child._theirs).frame(json.dumps(GOOD_TURN).encode(), nonce=5, seq=1))
    is_forged(fault(made), made)


def test_bytes_of_a_print_in_the_channel(trial: Make) -> None:
    made = trial(lambda stage: stage.sock.sendall(b"x" * 100))
    is_forged(fault(made), made)


# -- descriptors -------------------------------------------------------------------------------------------------------


def test_descriptors_nobody_asked_for_are_closed(trial: Make) -> None:
    def with_fds(stage: Stage) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        stage.send_fds(stage.frame(json.dumps(GOOD_TURN).encode(), fds=2), [null, null])
        os.close(null)

    made = trial(with_fds)
    before = descriptors()
    for _ in range(20):
        made.ask(TURN, GatedTurn)
    assert not left_open(made, before)


@pytest.mark.parametrize("nonce", [None, 3])
def test_a_flood_of_descriptors_is_bounded(trial: Make, nonce: int | None) -> None:
    """One byte and sixteen descriptors at a time: the parent gives up long before it runs out of them."""

    def flood(stage: Stage) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        data = stage.frame(json.dumps(GOOD_TURN).encode(), **({} if nonce is None else {"nonce": nonce}))
        try:
            for n in range(len(data)):
                stage.send_fds(data[n : n + 1], [null] * 16)
        except OSError:
            pass
        finally:
            os.close(null)

    made = trial(flood)
    before = descriptors()
    found = fault(made)
    is_forged(found, made)
    assert "descriptors came that belong to no frame" in found.reason
    assert not left_open(made, before)


@pytest.mark.parametrize("header", [{"kind": wire.REPLY}, {"nonce": 5}, {"seq": 99}])
@pytest.mark.parametrize("raw", [b"not JSON", b"{}"])
def test_descriptors_of_a_frame_that_is_refused_are_closed(trial: Make, header: dict[str, Any], raw: bytes) -> None:
    def play(stage: Stage) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        stage.send_fds(stage.frame(raw, fds=3, **header), [null] * 3)
        os.close(null)

    made = trial(play)
    before = descriptors()
    is_forged(fault(made), made)
    assert not left_open(made, before)


def test_received_descriptors_are_not_inherited() -> None:
    ours, theirs = (wire.Channel(s) for s in wire.pair())
    null = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(null, True)
    theirs.post({"do": "x"}, fds=(null,))
    frame = ours.receive(timeout_s=5.0)
    assert not os.get_inheritable(frame.fds[0])
    frame.close_fds()
    frame.close_fds()
    os.close(null)
    ours.close()
    theirs.close()


def test_channels_work_above_a_thousand_descriptors() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"at most {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        ours, theirs = (wire.Channel(s) for s in wire.pair())
        assert ours.fileno() > 1023
        assert not ours.pending()
        theirs.post({"do": "x"})
        assert ours.pending()
        assert ours.receive(timeout_s=5.0).body == {"do": "x"}
        with pytest.raises(wire.TimedOut):
            ours.receive(timeout_s=0.01)
        ours.close()
        theirs.close()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- silence and death -------------------------------------------------------------------------------------------------


def test_silence(trial: Make) -> None:
    made = trial(lambda stage: None, call_s=0.05)
    found = fault(made)
    assert found.outcome is Outcome.TIMED_OUT
    assert found.evidence == []
    assert "replaying the captured calls took longer" in found.reason
    assert not made.child.alive()


def test_half_an_answer_is_silence(trial: Make) -> None:
    made = trial(lambda stage: stage.sock.sendall(stage.frame(b"{}")[:20]), call_s=0.05)
    assert fault(made).outcome is Outcome.TIMED_OUT


def test_a_trickle_does_not_extend_the_time(trial: Make) -> None:
    stop = threading.Event()

    def trickle(stage: Stage) -> None:
        for byte in stage.frame(b" " * 4000):
            stage.sock.sendall(bytes([byte]))
            if stop.wait(0.01):
                return

    made = trial(trickle, call_s=0.1)
    assert fault(made).outcome is Outcome.TIMED_OUT
    stop.set()


DEATHS: dict[str, tuple[dict[str, Any], Outcome, str]] = {
    "exit 0": ({"status": 0}, Outcome.CRASHED, "(exit 0) while calling forward"),
    "exit 3": ({"status": 3 << 8}, Outcome.CRASHED, "(exit 3)"),
    "segfault": ({"status": 11}, Outcome.CRASHED, "signal 11 (SIGSEGV)"),
    "its last words": ({"status": 6, "output": "a\nb\nterminate called\n"}, Outcome.CRASHED, "terminate called"),
    "memory": ({"status": 9, "limit": "memory"}, Outcome.OVER_LIMIT, "limit on memory"),
    "output": ({"status": 9, "limit": "output"}, Outcome.OVER_LIMIT, "limit on output"),
    "cpu time": ({"status": 24, "limit": "cpu time"}, Outcome.OVER_LIMIT, "limit on cpu time"),
}


@pytest.mark.parametrize("name", DEATHS)
@pytest.mark.parametrize("after", [0, 10])
def test_death(trial: Make, name: str, after: int) -> None:
    """Before any byte of an answer, and in the middle of one."""
    how, outcome, said = DEATHS[name]

    def die(stage: Stage) -> None:
        stage.sock.sendall(stage.frame(b"{}")[:after])
        made.child.die(**how)  # type: ignore[attr-defined]

    made = trial(die)
    found = fault(made, {"do": "call"}, CallClaim)
    assert found.outcome is outcome
    assert said in found.reason
    assert found.evidence == []


def test_death_before_the_question(trial: Make) -> None:
    made = trial(lambda stage: None)
    made.child.die(11)  # type: ignore[attr-defined]
    assert fault(made).outcome is Outcome.CRASHED
    with pytest.raises(CandidateFault) as caught:
        made.begin_load(["RMSNorm"])
    assert "SIGSEGV" in caught.value.reason


def test_death_while_it_loads(trial: Make) -> None:
    def play(stage: Stage) -> None:
        if stage.body["do"] == "context":
            stage.say({})
        else:
            made.child.die(11)  # type: ignore[attr-defined]

    made = trial(play)
    with pytest.raises(CandidateFault) as caught:
        made.end_load(made.begin_load(["RMSNorm"]))
    assert caught.value.outcome is Outcome.CRASHED
    assert "importing the file" in caught.value.reason


def test_a_cancelled_death_is_no_fault(trial: Make) -> None:
    cancel = threading.Event()
    cancel.set()

    def die(stage: Stage) -> None:
        made.child.die(9)  # type: ignore[attr-defined]

    made = trial(die, cancel=cancel)
    with pytest.raises(Cancelled):
        made.ask(TURN, GatedTurn)


# -- exceptions --------------------------------------------------------------------------------------------------------


def exception(kind: str = "ValueError", message: str = "no", **more: Any) -> dict[str, Any]:
    return {"exception": {"type": kind, "message": message, "where": "line 3: x", "trace": "Traceback ..."} | more}


EXCEPTIONS: dict[str, tuple[str, dict[str, Any], Outcome, str]] = {
    "at import": ("load", exception("ImportError", "no module"), Outcome.BUILD_FAILED, "importing the file raised"),
    "in forward": ("call", exception(), Outcome.CRASHED, "calling forward raised ValueError: no (line 3: x)"),
    "in the constructor": ("make", exception(), Outcome.CRASHED, "constructing the module raised"),
    "SystemExit": ("call", exception("SystemExit", "0"), Outcome.CRASHED, "SystemExit"),
    "memory": ("call", exception("MemoryError", ""), Outcome.OVER_LIMIT, "out of memory"),
    "CUDA memory": ("call", exception("OutOfMemoryError", "CUDA out of memory. Tried"), Outcome.OVER_LIMIT, "memory"),
    "CPU memory": ("call", exception("RuntimeError", "can't allocate memory: you"), Outcome.OVER_LIMIT, "memory"),
    "contract": ("make", {"contract": "RMSNorm(hidden_size=8) can't be called"}, Outcome.CONTRACT_BROKEN, "RMSNorm("),
}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions(trial: Make, name: str) -> None:
    do, body, outcome, said = EXCEPTIONS[name]
    made = trial(lambda stage: stage.say(body, kind=wire.ERROR))
    found = fault(made, {"do": do}, CallClaim)
    assert found.outcome is outcome
    assert said in found.reason
    assert found.evidence == []
    assert made.child.alive()


def finding(severity: str, kind: str = "timer", what: str = "time.perf_counter was replaced") -> dict[str, Any]:
    return {"kind": kind, "what": what, "where": "line 9", "instead": "leave it", "severity": severity}


@pytest.mark.parametrize(("severities", "outcome"), [
    (["reject"], Outcome.TAMPERED), (["policy"], Outcome.POLICY), (["policy", "reject"], Outcome.TAMPERED),
    (["warn"], Outcome.CRASHED),
])  # fmt: skip
def test_an_exception_with_findings(trial: Make, severities: list[str], outcome: Outcome) -> None:
    body = exception(findings=[finding(s) for s in severities])
    made = trial(lambda stage: stage.say(body, kind=wire.ERROR))
    found = fault(made, {"do": "call"}, CallClaim)
    assert found.outcome is outcome
    assert len(found.evidence) == len([s for s in severities if s != "warn"])
    assert len(made.warnings) == severities.count("warn")


@pytest.mark.parametrize(("severity", "outcome", "kind"), [
    ("reject", Outcome.TAMPERED, "timer"), ("policy", Outcome.POLICY, "policy"),
])  # fmt: skip
def test_findings_reject(trial: Make, severity: str, outcome: Outcome, kind: str) -> None:
    made = trial(lambda stage: stage.say({"findings": [finding("warn"), finding(severity)]}))
    with pytest.raises(CandidateFault) as caught:
        made.weigh(made.ask({"do": "checkpoint"}, Findings))
    assert caught.value.outcome is outcome
    assert [(e.kind, e.where, e.instead) for e in caught.value.evidence] == [(kind, "line 9", "leave it")]
    assert made.warnings == ["timer: time.perf_counter was replaced (line 9)"]


def test_odd_findings_only_warn(trial: Make) -> None:
    made = trial(lambda stage: stage.say({"findings": [finding("warn")]}))
    made.weigh(made.ask({"do": "checkpoint"}, Findings))
    assert len(made.warnings) == 1


@pytest.mark.parametrize("body", [
    {}, {"exception": "text"}, {"exception": None}, exception(severity="x"), exception("E" * 5000),
    exception(findings=[finding("harmless")]), exception(message="\ud800"),
])  # fmt: skip
def test_forged_exceptions(trial: Make, body: dict[str, Any]) -> None:
    made = trial(lambda stage: stage.say(body, kind=wire.ERROR))
    is_forged(fault(made, {"do": "call"}, CallClaim), made)


@pytest.mark.parametrize("contract", [
    "\ud800 is no text", 7, None, ["x"],
])  # fmt: skip
def test_a_broken_contract_is_told_in_words(trial: Make, contract: Any) -> None:
    """The reason goes into a report that must be writable."""
    made = trial(lambda stage: stage.say({"contract": contract}, kind=wire.ERROR))
    found = fault(made, {"do": "make"}, CallClaim)
    assert found.outcome in (Outcome.CONTRACT_BROKEN, Outcome.TAMPERED)
    found.reason.encode("utf-8")


def test_long_reasons_are_cut(trial: Make) -> None:
    made = trial(lambda stage: stage.say({"contract": "x" * 100_000}, kind=wire.ERROR))
    assert len(fault(made, {"do": "make"}, CallClaim).reason) <= 2000


# -- weights -----------------------------------------------------------------------------------------------------------


class StateJudge:
    def __init__(self, told: dict[str, Any]) -> None:
        self.told, self.asked, self.desk = told, [], SimpleNamespace(cpu=True)  # type: ignore[var-annotated]

    def ask(self, do: str, **body: Any) -> Any:
        self.asked.append((do, body))
        places = {"weight": {"at": 0, "bytes": 8}}
        return SimpleNamespace(body={"places": places} if do == "state" else self.told)


def test_changed_weights(trial: Make) -> None:
    made = trial(lambda stage: stage.say({"copied": ["weight"]}))
    made.judge = StateJudge({"ok": False, "note": "weight was changed"})  # type: ignore[assignment]
    with pytest.raises(CandidateFault) as caught:
        made._weights("k")
    assert caught.value.outcome is Outcome.MUTATED
    assert [e.kind for e in caught.value.evidence] == ["state_mutation"]
    made.judge = StateJudge({"ok": True})  # type: ignore[assignment]
    made._weights("k")
    assert made.judge.asked[-1] == ("judge_state", {"key": "k", "copied": ["weight"]})  # type: ignore[attr-defined]
    assert StateClaim(copied=[]).copied == []


# -- which calls are made ----------------------------------------------------------------------------------------------


def test_a_call_that_stands_in_is_made_outside_the_domain_only(trial: Make) -> None:
    made = trial(lambda stage: None)
    narrow = {"dims": {"hidden": 96}, "dtype": "bfloat16", "unless": None}
    wide = {"dims": {"hidden": 4096}, "dtype": "bfloat16", "unless": 0}
    made.plan = {"probes": [narrow, wide]}
    assert (made._wanted(narrow), made._wanted(wide)) == (True, False)
    made.domain = Domain({"hidden": frozenset({4096})}, {}, None)
    assert (made._wanted(narrow), made._wanted(wide)) == (False, True)
    made.domain = Domain({"hidden": frozenset({512})}, {}, None)
    assert (made._wanted(narrow), made._wanted(wide)) == (False, False)


HOLDS = [
    {"entry": "A", "form": form, "dims": {"hidden": hidden}, "dtype": "bfloat16", "key": f"{form}{hidden}"}
    | {"large": hidden > 4096}
    for form, hidden in (("plain", 96), ("residual", 96), ("plain", 4096), ("plain", 65536))
]


def held(made: Trial, told: dict[str, Any]) -> list[tuple[int, int]]:
    """Number and count of what is held, with a judge that answers ``told``."""
    asked: list[tuple[int, int]] = []

    def ask(do: str, **body: Any) -> Any:
        if do == "hold":
            asked.append((body["number"], body["calls"]))
        return SimpleNamespace(body={"calls": body["calls"]} if do == "hold" else told)

    made.judge.ask = ask  # type: ignore[method-assign]
    made.plan = {"holds": HOLDS, "modules": [{"key": shape["key"]} for shape in HOLDS]}
    made._hold(lambda doing, share: None)
    return asked


def answer_holds(stage: Stage) -> None:
    stage.say({"shared": []} if stage.body["do"] == "hold" else {})


def test_what_is_held_is_the_smallest_shape_of_the_domain(trial: Make) -> None:
    for on_gpu, wanted in ((True, [{0, 1, 3}]), (False, [{0, 3}, {1}])):
        made = trial(answer_holds)
        made.on_gpu = on_gpu
        asked = held(made, {"ok": True})
        assert {number for number, _ in asked} in wanted
        assert all(64 < calls <= 128 for _, calls in asked)
    made = trial(answer_holds)
    made.domain = Domain({"hidden": frozenset({4096})}, {}, None)
    assert [number for number, _ in held(made, {"ok": True})] == [2]
    made.domain = Domain({"hidden": frozenset({7})}, {}, None)
    assert held(made, {"ok": True}) == []


def test_a_shared_output_is_evidence(trial: Make) -> None:
    made = trial(answer_holds)
    told = {"ok": False, "outcome": "MUTATED", "kind": "output_alias", "output": "y", "note": "outputs share memory"}
    with pytest.raises(CandidateFault) as caught:
        held(made, told)
    assert caught.value.outcome is Outcome.MUTATED
    assert [e.kind for e in caught.value.evidence] == ["output_alias"]
    assert "calls whose outputs are all kept" in caught.value.reason
    assert "anew" in caught.value.evidence[0].instead


def test_a_forged_answer_on_what_is_held(trial: Make) -> None:
    made = trial(lambda stage: stage.say({"shared": "none"} if stage.body["do"] == "hold" else {}))
    with pytest.raises(CandidateFault) as caught:
        held(made, {"ok": True})
    assert [e.kind for e in caught.value.evidence] == ["protocol"]


def test_a_value_that_is_not_finite_is_named() -> None:
    first = {"index": [1, 0], "expected": None, "got": 0.5, "note": "expected is NaN"}
    told = {"outcome": "NON_FINITE", "judgement": {"first_mismatch": first, "share_wrong": 0.5}, "limit": 5}
    assert explain(told).startswith("first wrong at [1, 0]: expected NaN, got 0.5; 50% of")


def test_that_all_is_wrong_is_said_once() -> None:
    first = {"index": [1, 0], "expected": 2, "got": -0.07114705691324516}
    judged = {"first_mismatch": first, "share_wrong": 1.0, "pattern": "all elements wrong; about twice"}
    said = explain({"outcome": "WRONG_VALUES", "judgement": judged, "limit": 5})
    assert said == "first wrong at [1, 0]: expected 2, got -0.0711470569; all elements wrong; about twice"


def test_the_call_that_raised_stands_in_the_first_line(trial: Make) -> None:
    made = trial(lambda stage: stage.say(exception(), kind=wire.ERROR) if stage.body["do"] == "hold" else stage.say({}))
    with pytest.raises(CandidateFault) as caught:
        held(made, {"ok": True})
    first, *rest = caught.value.reason.splitlines()
    assert first.startswith("calling forward many times raised ValueError: no (line 3: x); the call: ")
    assert "(hidden=96, bfloat16)" in first
    assert rest == ["Traceback ..."]


class PlanJudge:
    """Lays out calls that may lie in one of two regions, and writes down when it is asked what."""

    desk = SimpleNamespace(cpu=True)

    def __init__(self, story: list[str], related: dict[int, int]) -> None:
        self.story, self.related = story, related
        self.region: dict[int, int] = {}
        self.waiting: list[int] = []
        self.latest = 1

    def ask(self, do: str, **body: Any) -> Any:
        if do == "step":
            self.story.append(f"judge {body['i']}")
            self.waiting.remove(body["i"])
        elif do == "take":
            self.story.append(f"take {body['i']}")
        elif do == "lay" and body["drop"] is not None:
            self.waiting.remove(body["drop"])
        laid = []
        for i in body.get("lay", []):
            region = self.region[self.related[i]] if i in self.related else 1 - self.latest
            if region in [self.region[n] for n in self.waiting]:
                break
            self.region[i] = self.latest = region
            self.waiting.append(i)
            laid.append({"seq": i, "key": "k"})
        return SimpleNamespace(body={"laid": laid, "told": {"ok": True}, "places": {}})


def of_plan(calls: int, may_raise: tuple[int, ...] = ()) -> dict[str, Any]:
    probe = {"case_id": None, "dims": {}, "dtype": "float32", "unless": None, "gating": True, "why": "a call"}
    return {
        "probes": [probe | {"may_raise": i in may_raise} for i in range(calls)],
        "modules": [{"key": "k"}],
        "holds": [],
    }


def calls_of(story: list[str], fails: dict[int, dict[str, Any]]) -> Play:
    def play(stage: Stage) -> None:
        if stage.body["do"] == "call":
            seq = stage.body["seq"]
            story.append(f"call {seq}")
            if seq in fails:
                stage.say(fails[seq], kind=wire.ERROR)
            else:
                stage.say({"outputs": [], "aliases": [], "earlier": []})
        else:
            stage.say({"findings": []} if stage.body["do"] == "checkpoint" else {})

    return play


def told_of(trial: Make, calls: int, related: dict[int, int], fails: dict[int, dict[str, Any]]) -> list[str]:
    story: list[str] = []
    made = trial(calls_of(story, fails))
    made.judge = PlanJudge(story, related)  # type: ignore[assignment]
    made.plan = of_plan(calls, may_raise=tuple(fails))
    made.correctness({}, lambda doing, share: None)
    return story


def test_a_call_is_made_while_the_one_before_it_is_judged(trial: Make) -> None:
    story = told_of(trial, 6, {}, {})
    assert [word for word in story if word.startswith("call")] == [f"call {i}" for i in range(6)]
    assert [word for word in story if word.startswith("judge")] == [f"judge {i}" for i in range(6)]


def test_a_related_call_waits_until_the_earlier_one_is_judged(trial: Make) -> None:
    story = told_of(trial, 6, {2: 1, 3: 1}, {})
    for i in (2, 3):
        assert story.index(f"judge {i - 1}") < story.index(f"call {i}")


def test_a_call_that_may_raise_is_left_out(trial: Make) -> None:
    story = told_of(trial, 4, {2: 1}, {1: exception()})
    assert [word for word in story if word.startswith("judge")] == ["judge 0", "judge 2", "judge 3"]
    assert "call 2" in story


def test_the_next_call_is_posted_before_the_judge_is_asked(trial: Make) -> None:
    story: list[str] = []
    made = trial(calls_of([], {}))
    made.judge = PlanJudge(story, {2: 1})  # type: ignore[assignment]
    made.plan = of_plan(4)
    real = made.post
    made.post = lambda body: (story.append(f"post {body['seq']}"), real(body))[1]  # type: ignore[method-assign]
    made.correctness({}, lambda doing, share: None)
    first = ["post 0", "take 0", "post 1", "judge 0", "take 1", "judge 1"]
    assert story == [*first, "post 2", "take 2", "post 3", "judge 2", "take 3", "judge 3"]
