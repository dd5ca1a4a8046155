"""What the parent makes of whatever a candidate's process sends, through a real socket and nothing of a sandbox."""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fk_core.child import wire
from fk_core.errors import Cancelled
from fk_core.fault import CandidateFault
from fk_core.records.claims import CallClaim, Findings, FullTurn
from fk_core.records.report import Outcome
from fk_core.trial import Trial
from tests.descriptors import descriptors
from tests.unit.stage import Make, Stage, exception

TURN = {"do": "turn", "case": "op/a"}
GOOD_TURN = {"full_us": [2.0], "calls": 3}


def left_open(made: Trial, before: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Descriptors that were not there before. The stage has its own in this same process, until it comes to rest."""
    made.child.rest()  # type: ignore[attr-defined]
    return descriptors() - before


def fault(made: Trial, body: dict[str, Any] | None = None, claim: Any = FullTurn) -> CandidateFault:
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
    turn = made.ask(TURN, FullTurn)
    assert (turn.full_us, turn.calls) == ([2.0], 3)
    assert made.child.alive()
    assert made.detail["candidate turn"] > 0


def test_several_requests_at_once_are_answered_in_order(trial: Make) -> None:
    made = trial(lambda stage: stage.say({} if stage.body["do"] == "context" else {"findings": []}))
    made.end_load(made.begin_load(["RMSNorm"]), lambda: False)
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
    "NaN": b'{"full_us": [NaN], "calls": 3}',
    "Infinity": b'{"full_us": [Infinity], "calls": 3}',
    "minus Infinity": b'{"full_us": [-Infinity], "calls": 3}',
    "an overflowing float": b'{"full_us": [1e999], "calls": 3}',
    "nested too deep": b'{"a":' * 60000 + b"1" + b"}" * 60000,
    "an endless number": b'{"full_us": [' + b"9" * 5000 + b'], "calls": 3}',
    "an unknown field": json.dumps(GOOD_TURN | {"speedup": 2}).encode(),
    "a missing field": b'{"full_us": [2.0]}',
    "text for a number": json.dumps(GOOD_TURN | {"full_us": ["9.0"]}).encode(),
    "truth for a number": json.dumps(GOOD_TURN | {"full_us": [True]}).encode(),
    "a float for a count": json.dumps(GOOD_TURN | {"calls": 3.5}).encode(),
    "no time at all": json.dumps(GOOD_TURN | {"full_us": [0]}).encode(),
    "negative": json.dumps(GOOD_TURN | {"full_us": [-1.0]}).encode(),
    "too long a list": json.dumps(GOOD_TURN | {"full_us": [1.0] * 65}).encode(),
    "no calls": json.dumps(GOOD_TURN | {"calls": 0}).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_forged_bodies(trial: Make, name: str) -> None:
    made = trial(lambda stage: stage.sock.sendall(stage.frame(BODIES[name])))
    is_forged(fault(made), made)


CALLS: dict[str, dict[str, Any]] = {
    "aliases of three": {"returned": 0, "outputs": [], "aliases": [[1, 2, 3]]},
    "text as shape": {"returned": 0, "outputs": [{"shape": "4096"}], "aliases": []},
    "too many outputs": {"returned": 0, "outputs": [{}] * 65, "aliases": []},
    "a problem of megabytes": {"returned": 0, "outputs": [{"problem": "x" * 100_000}], "aliases": []},
    "a lone surrogate": {"returned": 0, "outputs": [{"problem": "\ud800"}], "aliases": []},
}


@pytest.mark.parametrize("name", CALLS)
def test_forged_descriptions(trial: Make, name: str) -> None:
    made = trial(lambda stage: stage.say(CALLS[name]))
    is_forged(fault(made, {"do": "call"}, CallClaim), made)


@pytest.mark.parametrize(
    "claim",
    [
        {"returned": 0, "outputs": [], "aliases": [[-5, 0]]},
        {"returned": 0, "outputs": [], "aliases": [], "earlier": [-9]},
    ],
)
def test_negative_indices_never_reach_the_judge(trial: Make, claim: dict[str, Any]) -> None:
    made = trial(lambda stage: stage.say(claim))
    is_forged(fault(made, {"do": "call"}, CallClaim), made)


def test_a_second_answer_is_found_at_the_next_question(trial: Make) -> None:
    def twice(stage: Stage) -> None:
        stage.say(GOOD_TURN)
        stage.say(GOOD_TURN)

    made = trial(twice)
    made.ask(TURN, FullTurn)
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
        made.ask(TURN, FullTurn)
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
    "memory": ({"status": 9, "limit": "memory"}, Outcome.OVER_LIMIT, "limit on memory (16 GiB)"),
    "output": ({"status": 9, "limit": "output"}, Outcome.OVER_LIMIT, "limit on output (16 MiB)"),
    "cpu time": ({"status": 24, "limit": "cpu time"}, Outcome.OVER_LIMIT, "limit on cpu time (1800 s)"),
    "processes": ({"status": 9, "limit": "processes"}, Outcome.OVER_LIMIT, "limit on processes (256)"),
    "file size": ({"status": 25, "limit": "file size"}, Outcome.OVER_LIMIT, "limit on file size (2 GiB)"),
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
        made.end_load(made.begin_load(["RMSNorm"]), lambda: False)
    assert caught.value.outcome is Outcome.CRASHED
    assert "importing the file" in caught.value.reason


def test_a_cancelled_death_is_no_fault(trial: Make) -> None:
    cancel = threading.Event()
    cancel.set()

    def die(stage: Stage) -> None:
        made.child.die(9)  # type: ignore[attr-defined]

    made = trial(die, cancel=cancel)
    with pytest.raises(Cancelled):
        made.ask(TURN, FullTurn)


# -- exceptions --------------------------------------------------------------------------------------------------------


EXCEPTIONS: dict[str, tuple[str, dict[str, Any], Outcome, str]] = {
    "at import": ("load", exception("ImportError", "no module"), Outcome.BUILD_FAILED, "importing the file raised"),
    "in forward": ("call", exception(), Outcome.CRASHED, "calling forward raised ValueError: no (line 3: x)"),
    "in the constructor": ("make", exception(), Outcome.CRASHED, "constructing the module raised"),
    "SystemExit": ("call", exception("SystemExit", "0"), Outcome.CRASHED, "SystemExit"),
    "memory": ("call", exception("MemoryError", ""), Outcome.OVER_LIMIT, "; at most 16 GiB may be used"),
    "CUDA memory": ("call", exception("OutOfMemoryError", "CUDA out of memory. Tried"), Outcome.OVER_LIMIT, "memory"),
    "CPU memory": ("call", exception("RuntimeError", "can't allocate memory: you"), Outcome.OVER_LIMIT, "16 GiB"),
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


@pytest.mark.parametrize(
    ("kind", "trace", "told"),
    [
        ("InterpreterError", "Traceback ...", True),
        ("AttributeError", 'File "/x/triton/runtime/interpreter.py", line 1, in __call__', True),
        ("AttributeError", "Traceback ...", False),
    ],
)
def test_what_triton_interprets_may_compile_all_the_same(trial: Make, kind: str, trace: str, told: bool) -> None:
    said = exception(kind, "'int' object has no attribute 'to'", trace=trace)
    made = trial(lambda stage: stage.say(said, kind=wire.ERROR))
    found = fault(made, {"do": "call"})
    assert found.outcome is Outcome.CRASHED
    first, *rest = found.reason.splitlines()
    assert ("On a CPU kernels run in Triton's interpreter" in first) is told
    assert first.endswith("a run on a GPU settles it" if told else "(line 3: x)")
    assert trace in rest


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


# -- the judge works ahead ---------------------------------------------------------------------------------------------


def ahead_of(made: Trial, more: list[bool]) -> list[int]:
    """Have the judge say whether there is more to work out; gives how often it was asked."""
    asked: list[int] = []

    def ask(do: str, **body: Any) -> Any:
        assert do == "ahead"
        asked.append(body["most"])
        return SimpleNamespace(body={"more": more.pop(0)})

    made.judge.ask = ask  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize(("on_gpu", "wanted"), [(True, 3), (False, 0)])
def test_the_judge_works_ahead_while_nobody_answers(trial: Make, on_gpu: bool, wanted: int) -> None:
    go = threading.Event()

    def play(stage: Stage) -> None:
        go.wait(10.0)
        stage.say(GOOD_TURN)

    made = trial(play)
    made.on_gpu = on_gpu
    asked = ahead_of(made, [True, True, False])
    ticket = made.post(TURN)
    threading.Timer(0.2, go.set).start()
    assert made.collect_beside(ticket, "turn", FullTurn, lambda: made.ahead(answers=False), timeout_s=10.0).calls == 3
    assert len(asked) == wanted


def test_an_answer_that_is_there_is_taken_at_once(trial: Make) -> None:
    made = trial(lambda stage: stage.say(GOOD_TURN))
    made.on_gpu = True
    asked = ahead_of(made, [])
    ticket = made.post(TURN)
    while not made.child.channel.pending():
        pass
    made.collect_beside(ticket, "turn", FullTurn, lambda: made.ahead(answers=False), timeout_s=10.0)
    assert asked == []


def test_a_death_while_the_judge_works_ahead(trial: Make) -> None:
    made = trial(lambda stage: made.child.die(status=3 << 8))  # type: ignore[attr-defined]
    made.on_gpu = True
    ahead_of(made, [True] * 1000 + [False])
    with pytest.raises(CandidateFault) as caught:
        made.collect_beside(made.post(TURN), "turn", FullTurn, lambda: made.ahead(answers=False), timeout_s=10.0)
    assert caught.value.outcome is Outcome.CRASHED


def test_cancelled_while_the_judge_works_ahead(trial: Make) -> None:
    cancel = threading.Event()
    made = trial(lambda stage: None, cancel=cancel)
    made.on_gpu = True
    ahead_of(made, [True] * 1000)
    ticket = made.post(TURN)
    cancel.set()
    with pytest.raises(Cancelled):
        made.collect_beside(ticket, "turn", FullTurn, lambda: made.ahead(answers=False), timeout_s=10.0)


# -- exceptions of several lines ---------------------------------------------------------------------------------------


def test_the_cause_of_a_long_message_is_in_the_first_line(trial: Make) -> None:
    """Triton's compiler begins with the place and the lines around it, and ends with the cause."""
    said = "at 4:20:\n    x = tl.load(a +\n                    ^\n\nNameError('b is not defined')\n"
    made = trial(lambda stage: stage.say(exception("CompilationError", said), kind=wire.ERROR))
    found = fault(made, {"do": "call"}, CallClaim)
    first, *rest = found.reason.splitlines()
    assert first == ("calling forward raised CompilationError: at 4:20: ... NameError('b is not defined') (line 3: x)")
    assert "    x = tl.load(a +" in rest
    assert rest[-1] == "Traceback ..."
