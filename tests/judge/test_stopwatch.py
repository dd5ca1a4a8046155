"""Who is believed about time: the stopwatch against honest and lying processes on a machine of known truth."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fk_core import measure
from fk_core.errors import Cancelled, HarnessError
from fk_core.fault import CandidateFault
from fk_core.records.claims import LayoutClaim
from fk_core.records.report import Evidence, Outcome
from fk_core.records.task import CaseSpec
from fk_core.settings import Settings, Timing
from fk_core.verdict import word
from tests.judge.fakes import CALLS, Bench, Lies, Side

Make = Callable[..., Bench]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    settings = Settings(home=tmp_path, lock_dir=tmp_path)
    return lambda **more: Bench(monkeypatch, settings, **more)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


# -- honest ------------------------------------------------------------------------------------------------------------


def test_the_same_code_is_the_same(bench: Make) -> None:
    words = []
    for seed in range(20):
        made = bench(seed=seed)
        (found,) = made.run()
        assert found.estimate is not None
        assert found.mode == "gate nodes"
        assert abs(found.estimate.ratio - 1) < 0.006
        assert found.notes == []
        assert found.plain is not None
        assert abs(found.plain.ratio - 1) < 0.01
        words.append(word(found.estimate, made.t, 0.003))
    assert set(words) <= {"same", "inconclusive"}
    assert words.count("same") >= 15


@pytest.mark.parametrize(("us", "wanted"), [(10.3, "slower"), (9.7, "faster"), (5.0, "faster"), (30.0, "slower")])
def test_a_difference_has_its_name(bench: Make, us: float, wanted: str) -> None:
    words = []
    for seed in range(10):
        made = bench(seed=seed, candidate=Side(us=us))
        (found,) = made.run()
        assert found.estimate is not None
        assert found.estimate.ratio == pytest.approx(10 / us, rel=0.006)
        assert found.candidate_us == pytest.approx(us, rel=0.01)
        assert found.baseline_us == pytest.approx(10.0, rel=0.01)
        assert found.notes == []
        words.append(word(found.estimate, made.t, 0.003))
    assert words == [wanted] * 10


def test_what_is_reported_beside_it(bench: Make) -> None:
    (found,) = bench().run()
    assert found.capturable is True
    assert found.floor_us == 1.0
    assert found.stopped_because.startswith("the interval is within")
    assert found.programmatic is False
    assert found.eager is None


def test_every_round_has_a_pair_of_layouts_that_stays_together(bench: Make) -> None:
    made = bench(candidate=Side(bias_sd=0.03), baseline=Side(bias_sd=0.03))
    made.run()

    def gated(asked: list[dict[str, Any]]) -> list[int]:
        # Not the first, which wakes the device up, nor the replays of audits.
        return [a["layout"] for a in asked if a["do"] == "turn" and a["kind"] == "full" and a["prime"]][1:]

    theirs, ours = gated(made.trial.process.asked)[:-1], gated(made.judge.process.asked)  # the last is looked at
    assert len(theirs) == len(ours)
    assert theirs[::2] == theirs[1::2], "both turns of a round use the same layout"
    rounds = list(zip(theirs[::2], ours[::2], strict=True))
    assert len(set(rounds)) == min(len(rounds), made.t.short_layouts)
    assert len({a for a, _ in rounds}) == len({b for _, b in rounds}) == min(len(rounds), made.t.short_layouts)


def test_only_the_baseline_is_asked_what_a_gate_takes(bench: Make) -> None:
    """And only for layouts that have gates alone: a candidate can say nothing that moves the readings of its calls."""
    made = bench(candidate=Side(gate_us=2.0), baseline=Side(gate_us=2.0))
    made.run()
    theirs, ours = made.trial.process.asked, made.judge.process.asked
    assert not [a for a in theirs if a["do"] == "turn" and a["kind"] == "gate"]
    gates = [a["layout"] for a in ours if a["do"] == "turn" and a["kind"] == "gate"]
    assert len(gates) >= made.t.min_rounds // 2
    assert set(gates) <= set(range(made.t.gate_layouts))
    assert [a["gates"] for a in theirs if a["do"] == "time"] == [0]


def test_a_gate_that_is_slower_in_the_candidate_is_its_own_time(bench: Make) -> None:
    (found,) = bench(candidate=Side(gate_us=3.0)).run()
    assert found.estimate is not None
    assert found.candidate_us == pytest.approx(11.0, rel=0.02)


def test_turns_alternate(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench()
    turns: list[str] = []
    for name, process in (("c", made.trial.process), ("b", made.judge.process)):
        real = process.turn

        def turn(body: dict[str, Any], name: str = name, real: Any = real) -> dict[str, Any]:
            if body["kind"] == "full" and body["prime"]:
                turns.append(name)
            answer: dict[str, Any] = real(body)
            return answer

        monkeypatch.setattr(process, "turn", turn)
    made.run()
    assert turns.pop() == "c", "one more of the candidate is looked at"
    rounds = ["".join(turns[n : n + 4]) for n in range(2, len(turns), 4)]
    assert set(rounds) == {"bccb", "cbbc"}


def test_the_budget_ends_it(bench: Make) -> None:
    noisy = Side(round_sd=0.2)
    made = bench(candidate=noisy, baseline=Side(round_sd=0.2))
    began = made.clock.now_s
    (found,) = made.run()
    assert found.stopped_because == "the budget was spent"
    assert found.estimate is not None
    assert word(found.estimate, made.t, 0.003) == "inconclusive"
    round_s = 4 * (CALLS * 14 * 3 * 1.6 + 6 * 30 + 60) * 1e-6
    assert made.clock.now_s - began < made.t.budget_max_s + (made.t.step_rounds + 10) * round_s


@pytest.mark.parametrize(
    ("turns", "held_us", "believed"), [(18, 2000, True), (10_000, 250, True), (10_000, 2000, False)]
)
def test_what_holds_one_side_up_once_is_not_its_doing(bench: Make, turns: int, held_us: int, believed: bool) -> None:
    """Time between the readings that only the outside clock sees: in the first turns, or a little or much in all."""
    made = bench()
    real, left = made.trial.process.turn, [turns]

    def turn(body: dict[str, Any]) -> dict[str, Any]:
        if left[0]:
            left[0] -= 1
            made.clock.advance(held_us)
        answer: dict[str, Any] = real(body)
        return answer

    made.trial.process.turn = turn  # type: ignore[method-assign]
    (found,) = made.run()
    assert found.estimate is not None
    assert "taken again" in found.notes[0]
    assert (not any("the clock decides" in note for note in found.notes)) is believed
    assert (word(found.estimate, made.t, 0.003) in ("same", "inconclusive")) is believed


@pytest.mark.parametrize(("turn_us", "batch_us", "believed"), [(110.0, 0.0, True), (0.0, 60.0, False)])
def test_what_a_turn_costs_more_is_not_the_calls(bench: Make, turn_us: float, batch_us: float, believed: bool) -> None:
    """Time that only the outside clock sees, once in each turn or in each batch: 3 us a call that were hidden."""
    made = bench()
    real = made.trial.process.turn

    def turn(body: dict[str, Any]) -> dict[str, Any]:
        made.clock.advance(turn_us + batch_us * (body["prime"] + body["timed"]))
        answer: dict[str, Any] = real(body)
        return answer

    made.trial.process.turn = turn  # type: ignore[method-assign]
    (found,) = made.run()
    assert "taken again" in found.notes[0]
    assert any("the clock decides" in note for note in found.notes) is not believed
    assert found.estimate is not None
    assert (word(found.estimate, made.t, 0.003) in ("same", "inconclusive")) is believed


def test_a_clear_sign_ends_it_sooner(bench: Make) -> None:
    wide = replace(Timing(), target_half_width=1e-9, budget_max_s=1e9)
    made = bench(candidate=Side(us=10.8), t=wide)
    (found,) = made.run()
    assert found.estimate is not None
    assert "the interval is within" in found.stopped_because or "the sign is clear" in found.stopped_because


def test_cases_come_in_groups_that_fit(bench: Make) -> None:
    made = bench()
    found = made.run("op/a", "op/b", "op/c", dims={"rows": 1 << 16, "cols": 1 << 11})
    assert [f.case.id for f in found] == ["op/a", "op/b", "op/c"]
    assert made.lease.story == ["exclusive", "shared"] * (len(made.lease.story) // 2)
    assert len(made.lease.story) >= 4, "one group only: the sizes of this test are too small to need several"
    dropped = [a["case"] for a in made.judge.process.asked if a["do"] == "drop"]
    assert dropped == [a["case"] for a in made.trial.process.asked if a["do"] == "drop"]
    assert dropped == ["op/a", "op/b"], "what the last group holds ends with the job"


def test_small_cases_share_one_exclusive_window(bench: Make) -> None:
    made = bench()
    made.run("op/a", "op/b")
    assert made.lease.story == ["exclusive", "shared"]


@pytest.mark.parametrize(
    ("calls", "block", "layouts"),
    [(2, 1, 12), (40, 1, 12), (64, 1, 10), (80, 1, 8), (200, 1, 8), (80, 0, 16), (40, 0, 16)],
)
def test_long_batches_get_fewer_layouts(bench: Make, calls: int, block: int, layouts: int) -> None:
    """But those of the smallest inputs get the most."""
    made = bench()
    made.judge.calls, made.judge.block = calls, (64 << 10) + block
    made.run()
    seeds = next(a["seeds"] for a in made.trial.process.asked if a["do"] == "time")
    assert len(seeds) == layouts


def test_descriptors_are_closed(bench: Make) -> None:
    made = bench()
    made.run("op/a", "op/b")
    assert len(made.judge.given_fds) == 2
    assert made.trial.fds == made.judge.given_fds
    assert not [fd for fd in made.judge.given_fds if is_open(fd)]


def test_a_throttled_case_is_timed_again_from_nothing(bench: Make) -> None:
    """What the first pass found or failed to find is in no figure; that it happened is noted."""
    made = bench(candidate=Side(us=20.0))
    held = iter([("thermal",), ()])
    plain, slow = made.trial.process.turn, 2

    def turn(body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = plain(body)
        if slow and body["kind"] == "full":
            answer["full_us"] = [0.9 * answer["calls"] * made.judge.process.side.gate_us] * body["timed"]
        return answer

    made.trial.process.turn = turn  # type: ignore[method-assign]

    def first_is_over() -> tuple[str, ...]:
        nonlocal slow
        slow = 0
        return next(held)

    made.stopwatch.throttled = first_is_over
    (found,) = made.run()
    assert found.reason == ""
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(0.5, rel=0.02)
    assert [note for note in found.notes if "clocks were held down (thermal); timed again" in note]
    assert found.floor_us == 1.0
    assert found.capturable is True


# -- cancelled, too short ----------------------------------------------------------------------------------------------


def test_cancelled_before_and_between(bench: Make) -> None:
    made = bench()
    made.trial.cancel = threading.Event()
    made.trial.cancel.set()
    with pytest.raises(Cancelled):
        made.run()
    assert made.lease.story == []
    later = bench()
    later.trial.cancel = threading.Event()
    later.stopwatch.progress = lambda doing, share: later.trial.cancel.set()  # type: ignore[union-attr]
    with pytest.raises(Cancelled):
        later.run()
    assert later.lease.story == ["exclusive", "shared"], "the device is given back"


def test_readings_that_say_nothing_are_not_timed(bench: Make) -> None:
    # Gates and calls together read less than gates alone.
    def turn(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | ({"full_us": [1.8 * answer["calls"]] * body["timed"]} if body["kind"] == "full" else {})

    (found,) = bench(lies=Lies(turn=turn)).run()
    assert found.estimate is None
    assert "shorter than what the clock resolves" in found.reason
    assert found.stopped_because == "too many rounds without a usable reading"


# -- lying -------------------------------------------------------------------------------------------------------------


def halved(names: tuple[str, ...]) -> Lies:
    """A process that claims half of what its events said, in these fields."""

    def turn(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        claimed = dict(answer)
        for name in names:
            value = claimed.get(name)
            if value is not None:
                claimed[name] = [v / 2 for v in value] if isinstance(value, list) else value / 2
        return claimed

    return Lies(turn=turn)


def more_calls(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return answer | {"calls": answer["calls"] * 2}


def more_calls_captured(answer: dict[str, Any]) -> dict[str, Any]:
    layouts = [x | {"calls": 2 * x["calls"], "order": list(range(2 * x["calls"]))} for x in answer["layouts"]]
    return answer | {"layouts": layouts}


LIES = {
    "all readings": halved(("full_us", "plain_us")),
    "full readings only": halved(("full_us",)),
    "more calls than were captured": Lies(turn=more_calls),
    "more calls, from the capture on": Lies(turn=more_calls, capture=more_calls_captured),
}


@pytest.mark.parametrize("lie", [
    "all readings",
    "full readings only",
    "more calls than were captured", "more calls, from the capture on",
])  # fmt: skip
def test_lies_about_time_gain_nothing(bench: Make, lie: str) -> None:
    """Told to be twice as fast as the clock saw: corrected to what it saw, or rejected."""
    for seed in range(5):
        made = bench(seed=seed, lies=LIES[lie])
        found, outcome = None, Outcome.PASSED
        try:
            (found,) = made.run()
        except CandidateFault as fault:
            outcome = fault.outcome
        if found is None:
            assert outcome is Outcome.TAMPERED
        elif found.estimate is not None:
            assert found.estimate.ratio < 1.03, f"{lie}: {found.estimate.ratio:.3f}"
            assert word(found.estimate, made.t, 0.003) != "faster"


def test_who_waits_in_short_turns_hides_nothing(bench: Make) -> None:
    """A process that claims 3 us less a call than it takes, and makes shorter turns last as long as the longest: the
    difference of two turns is then what it claims."""
    made = bench()
    real, hidden = made.trial.process.turn, 3.0

    def turn(body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = real(body)
        if body["kind"] == "full" and body["prime"]:
            answer["full_us"] = [v - hidden * answer["calls"] for v in answer["full_us"]]
            made.clock.advance(hidden * answer["calls"] * (16 - body["timed"]))
        return answer

    made.trial.process.turn = turn  # type: ignore[method-assign]
    (found,) = made.run()
    assert any("the clock decides" in note for note in found.notes)
    assert found.estimate is not None
    assert word(found.estimate, made.t, 0.003) != "faster"


def test_what_the_clock_corrected_is_said(bench: Make) -> None:
    (found,) = bench(lies=LIES["all readings"]).run()
    assert any("clock" in note for note in found.notes)
    assert found.candidate_us is not None
    assert found.candidate_us > 9.5


def faulted(made: Bench, *names: str) -> CandidateFault:
    with pytest.raises(CandidateFault) as caught:
        made.run(*names)
    return caught.value


@pytest.mark.parametrize("full", [[], [100.0], [100.0, 100.0, 100.0]])
def test_another_number_of_readings(bench: Make, full: list[float]) -> None:
    fault = faulted(bench(lies=Lies(turn=lambda body, answer: answer | {"full_us": full})))
    assert fault.outcome is Outcome.TAMPERED
    assert "number of readings" in fault.reason


@pytest.mark.parametrize("kind", ["full", "plain"])
def test_nobody_but_the_harness_is_blamed_for_the_judges_readings(bench: Make, kind: str) -> None:
    made = bench()
    real = made.judge.process.turn

    def turn(body: dict[str, Any]) -> dict[str, Any]:
        return real(body) | ({f"{kind}_us": [100.0]} if body["kind"] == kind else {})

    made.judge.process.turn = turn  # type: ignore[method-assign]
    with pytest.raises(HarnessError, match="number of readings"):
        made.run()


@pytest.mark.parametrize("plain", [[], [100.0], [100.0] * 3])
def test_another_number_of_plain_readings(bench: Make, plain: list[float]) -> None:
    def turn(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | ({"plain_us": plain} if body["kind"] == "plain" else {})

    assert faulted(bench(lies=Lies(turn=turn))).outcome is Outcome.TAMPERED


@pytest.mark.parametrize("value", [0.0, -5.0, float("nan"), float("inf"), "100", None, True])
def test_readings_that_are_no_times(bench: Make, value: Any) -> None:
    fault = faulted(bench(lies=Lies(turn=lambda body, answer: answer | {"full_us": [value, value]})))
    assert fault.outcome is Outcome.TAMPERED


def test_work_on_another_stream(bench: Make) -> None:
    said = {"capturable": False, "reason": "unjoined work", "unjoined": True}
    fault = faulted(bench(lies=Lies(capture=lambda answer: said)))
    assert fault.outcome is Outcome.TAMPERED
    assert fault.case == "op/a"
    assert [e.kind for e in fault.evidence] == ["stream_escape"]
    assert "unjoined work" in fault.reason


def test_host_nodes(bench: Make) -> None:
    def capture(answer: dict[str, Any]) -> dict[str, Any]:
        answer["layouts"][3]["nodes"] = {"kernel": 40, "host": 2}
        return answer

    made = bench(lies=Lies(capture=capture))
    fault = faulted(made)
    assert fault.outcome is Outcome.TAMPERED
    assert [e.kind for e in fault.evidence] == ["host_node"]
    assert "2 host nodes" in fault.reason


def test_programmatic_edges_are_noted(bench: Make) -> None:
    def capture(answer: dict[str, Any]) -> dict[str, Any]:
        answer["layouts"][5]["programmatic"] = 3
        return answer

    (found,) = bench(lies=Lies(capture=capture)).run()
    assert found.programmatic is True


@pytest.mark.parametrize(
    "change",
    [
        {"order": [0] * CALLS},
        {"order": []},
        {"order": list(range(1, CALLS + 1))},
        {"calls": 3},
    ],
)
def test_captures_that_do_not_fit(bench: Make, change: dict[str, Any]) -> None:
    def capture(answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"layouts": [answer["layouts"][0] | change, *answer["layouts"][1:]]}

    assert faulted(bench(lies=Lies(capture=capture))).outcome is Outcome.TAMPERED


def test_a_missing_capture(bench: Make) -> None:
    lies = Lies(capture=lambda answer: answer | {"layouts": answer["layouts"][:-1]})
    assert faulted(bench(lies=lies)).outcome is Outcome.TAMPERED


def test_a_stale_graph(bench: Make) -> None:
    made = bench()
    made.judge.wrong = 2
    fault = faulted(made)
    assert fault.outcome is Outcome.TAMPERED
    assert [e.kind for e in fault.evidence] == ["graph_stale"]
    assert fault.case == "op/a"
    assert "2 of 4 calls" in fault.reason
    assert not made.lease.story, "nothing is timed"


def test_captured_calls_are_audited_before_and_behind_the_timed_turns(bench: Make) -> None:
    made = bench()
    made.run("op/a", "op/b")
    first, second = ["refill", "audit_take", "audit"], ["audit_take", "audit"]
    asked = [(a["do"], a["case"]) for a in made.judge.process.asked if a["do"] in first]
    for case in ("op/a", "op/b"):
        assert [do for do, of in asked if of == case] == first + second


def test_every_timed_turn_has_inputs_of_its_own(bench: Make) -> None:
    made = bench()
    made.run()
    for process in (made.trial.process, made.judge.process):
        turns = [a for a in process.asked if a["do"] == "turn" and a["kind"] == "full" and a["prime"]]
        assert len({a["fresh"] for a in turns}) == len(turns)


def test_any_batch_of_a_timed_turn_may_be_looked_at(bench: Make) -> None:
    """The turn behind the last round has one batch or two, and what its last one left is copied before anything else is
    replayed: a process can't know which batches are safe to leave out."""
    lengths = set()
    for seed in range(12):
        made = bench(seed=seed)
        made.run()
        asked = [
            body for who, body in made.asked if who == "candidate" and body["do"] in ("turn", "samples", "outputs")
        ]
        look = next(n for n, body in enumerate(asked) if body["do"] == "samples")
        assert [body["do"] for body in asked[look - 1 : look + 2]] == ["turn", "samples", "outputs"]
        assert asked[look - 1]["layout"] == asked[look]["layout"] == asked[look + 1]["layout"]
        assert not [body for body in asked[:look] if body.get("kind") in ("plain", "warm")]
        lengths.add(asked[look - 1]["timed"])
        (taken,) = [a for a in made.judge.process.asked if a["do"] == "audit_take" and "fresh" in a]
        assert taken["fresh"] == asked[look - 1]["fresh"] + asked[look - 1]["timed"] - 1
    assert lengths == {1, 2}


def test_an_output_that_a_timed_replay_left(bench: Make) -> None:
    made = bench()
    made.judge.wrong_fresh = 2
    fault = faulted(made)
    assert fault.outcome is Outcome.TAMPERED
    assert [e.kind for e in fault.evidence] == ["graph_stale"]
    assert "a timed replay" in fault.reason
    assert "2 of 4 calls" in fault.reason


def test_a_case_is_audited_while_the_next_one_is_captured(bench: Make) -> None:
    """What its replay left is copied before the candidate is asked for anything else."""
    made = bench()
    made.run("op/a", "op/b")
    asked = [(who, body["do"], body["case"]) for who, body in made.asked if "case" in body]
    left, posted = asked.index(("judge", "audit_take", "op/a")), made.posted_at["op/b"]
    assert asked[left - 1] == ("candidate", "outputs", "op/a")
    assert left < posted <= asked.index(("judge", "audit", "op/a"))


def test_the_baseline_is_captured_while_the_candidate_captures(bench: Make) -> None:
    made = bench()
    made.run("op/a", "op/b")
    asked = [(who, body["do"], body["case"]) for who, body in made.asked if body["do"] == "time"]
    assert sorted(asked) == [(who, "time", case) for who in ("candidate", "judge") for case in ("op/a", "op/b")]
    assert asked[0] == ("judge", "time", "op/a")


def test_what_is_to_be_done_meanwhile_is_done(bench: Make) -> None:
    made, left = bench(), [3]

    def work() -> bool:
        left[0] -= 1
        return left[0] > 0

    cases = [CaseSpec.model_construct(id="op/a", dims={"rows": 64}, calls=1)]
    made.stopwatch.plan(cases, {"op/a": "key"})
    pieces = 0
    while made.stopwatch.baseline():
        pieces += 1
    assert pieces == made.t.short_layouts // measure._PIECE
    asked = [body for who, body in made.asked if body["do"] in ("time", "layouts")]
    assert [body["do"] for body in asked] == ["time"] + ["layouts"] * (pieces - 1)
    (laid,) = made.stopwatch._laid
    assert [seed for body in asked for seed in body["seeds"]] == laid.seeds
    assert laid.layouts == [LayoutClaim(**row) for row in made.judge.process.layouts["op/a"]]
    made.stopwatch.capture(work)
    assert left[0] <= 0


@pytest.mark.parametrize("evidence", [False, True])
def test_a_stale_graph_says_more_than_a_failure_behind_it(bench: Make, evidence: bool) -> None:
    made = bench()
    made.judge.wrong = 2
    real = made.trial.ask

    def ask(body: dict[str, Any], claim: Any, **more: Any) -> Any:
        if body["do"] == "arena" and body["name"] == "timing/op/b":
            found = [Evidence(kind="timer", what="a clock was replaced")] if evidence else []
            raise CandidateFault(Outcome.OVER_LIMIT, "out of memory", found)
        return real(body, claim, **more)

    made.trial.ask = ask  # type: ignore[method-assign]
    with pytest.raises(CandidateFault) as caught:
        made.run("op/a", "op/b")
    assert caught.value.outcome is (Outcome.OVER_LIMIT if evidence else Outcome.TAMPERED)
    assert not [fd for fd in made.judge.given_fds if is_open(fd)]


def test_a_case_that_fails_its_audit_ends_the_captures(bench: Make) -> None:
    made = bench()
    made.judge.wrong = 2
    with pytest.raises(CandidateFault) as caught:
        made.run("op/a", "op/b", "op/c")
    assert caught.value.case == "op/a"
    assert "op/c" not in [body["case"] for body in made.trial.posted]
    assert not [fd for fd in made.judge.given_fds if is_open(fd)]


# -- what can't be captured --------------------------------------------------------------------------------------------


def test_refusing_capture_does_not_pay(bench: Make) -> None:
    """The baseline runs in its graph, as an engine would run it; the candidate runs as it can."""
    made = bench(
        candidate=Side(capturable=False, eager_us=25.0, slot_us=0.0),
        baseline=Side(us=10.0, eager_us=25.0, slot_us=0.0),
    )
    (found,) = made.run()
    assert found.mode == "eager"
    assert found.capturable is False
    assert "stream is capturing" in found.capture_reason
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(10 / 25, rel=0.02)
    assert found.eager is not None
    assert found.eager.ratio == pytest.approx(1.0, rel=0.02)
    assert found.candidate_us == pytest.approx(25.0, rel=0.02)
    assert any("graph" in note for note in found.notes)
    assert word(found.estimate, made.t, 0.003) == "slower"


def test_where_the_baseline_can_not_be_captured_both_run_eagerly(bench: Make) -> None:
    made = bench(
        candidate=Side(eager_us=20.0, slot_us=0.0), baseline=Side(capturable=False, eager_us=25.0, slot_us=0.0)
    )
    (found,) = made.run()
    assert found.mode == "eager"
    assert found.capturable is True
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(25 / 20, rel=0.02)
    assert found.notes == []


@pytest.mark.parametrize("cpu", [False, True])
@pytest.mark.parametrize("after", [0, 9])
@pytest.mark.parametrize(
    ("wrong", "outcome", "kind"),
    [
        ("values", Outcome.WRONG_VALUES, "phase"),
        ("input", Outcome.MUTATED, "input_mutation"),
        ("alias", Outcome.MUTATED, "output_alias"),
    ],
)
def test_a_timed_eager_call_that_is_not_as_judged(
    bench: Make, cpu: bool, after: int, wrong: str, outcome: Outcome, kind: str
) -> None:
    made = bench(cpu=cpu, candidate=Side(capturable=False))
    made.judge.wrong_loop = (after, wrong)
    fault = faulted(made)
    assert fault.outcome is outcome
    assert [e.kind for e in fault.evidence] == [kind]
    assert fault.case == "op/a"
    assert "y" in fault.reason
    assert made.lease.story == ["exclusive", "shared"], "the device is given back"


@pytest.mark.parametrize("cpu", [False, True])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_turn_of_more_or_fewer_calls_than_were_asked_for(bench: Make, cpu: bool, off: int) -> None:
    def loop(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return {"made": answer["made"] + off} if len(body["order"]) > 9 else answer

    made = bench(cpu=cpu, candidate=Side(capturable=False), lies=Lies(loop=loop))
    fault = faulted(made)
    assert fault.outcome is Outcome.TAMPERED
    assert [e.kind for e in fault.evidence] == ["timer_tamper"]
    assert "timed calls" in fault.reason


# -- CPU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eager_us", "ratio"), [(25.0, 1.0), (25.75, 1 / 1.03), (12.5, 2.0)])
def test_the_cpu_is_timed_by_the_outside_clock(bench: Make, eager_us: float, ratio: float) -> None:
    made = bench(cpu=True, candidate=Side(eager_us=eager_us))
    (found,) = made.run()
    assert found.mode == "cpu wall"
    assert made.trial.crowd._last is not made.trial.crowd._first, (
        "others are looked for from the first turn to the last"
    )
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(ratio, rel=0.006)
    assert (found.capturable, found.floor_us) == (None, None)
    assert found.candidate_us == pytest.approx(eager_us, rel=0.01)
    assert not [a for a in made.judge.process.asked if a["do"] == "floor"]


def test_only_the_judge_says_what_an_idle_turn_takes(bench: Make) -> None:
    """The candidate is asked for none, so that it can't have more taken off its calls."""
    made = bench(cpu=True, candidate=Side(eager_us=50.0, idle_us=2000.0))
    (found,) = made.run()
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(0.5, rel=0.03)
    assert not [a for a in made.trial.process.asked if a["do"] == "loop" and a["idle"]]
    assert [a for a in made.judge.process.asked if a["do"] == "loop" and a["idle"]]


def test_readings_below_nothing_are_in_no_figure(bench: Make) -> None:
    """Where the machine stalls in the idle turns, what remains may be negative: no round, no time."""
    made = bench(cpu=True, candidate=Side(eager_us=0.01, empty_us=1.0), baseline=Side(idle_us=30_000.0))
    (found,) = made.run()
    assert found.estimate is None
    assert found.candidate_us is None
    assert found.baseline_us is None
    assert "shorter than what the clock resolves" in found.reason


def story(made: Bench) -> list[tuple[str, dict[str, Any]]]:
    """What both processes were asked, in order."""
    verbs = ("draw", "release", "loop", "held", "audit_loop", "memory_use")
    return [(who, body) for who, body in made.asked if body["do"] in verbs]


@pytest.mark.parametrize("cpu", [True, False])
def test_values_are_released_right_before_the_turn_that_uses_them(bench: Make, cpu: bool) -> None:
    """Between release and turn the candidate is asked for nothing, and it never sees values twice."""
    made = bench(cpu=cpu, candidate=Side(capturable=False))
    made.run()
    told = story(made)
    turns = [n for n, (who, body) in enumerate(told) if who == "candidate" and body["do"] == "loop"]
    warm = [n for n in turns if set(told[n][1]["order"]) <= {CALLS - 2, CALLS - 1}]
    timed = [n for n in turns if n not in warm]
    assert len(timed) >= 2 * 6
    assert warm
    used: list[set[int]] = []
    for n in timed:
        order = told[n][1]["order"]
        who, body = told[n - 1]
        assert (who, body["do"], body["side"], body["slots"]) == ("judge", "release", "theirs", order)
        assert len(set(order)) == len(order), "each slot is called once"
        assert not set(order) & {CALLS - 2, CALLS - 1}, "the spare slots are not timed"
        between = [body["do"] for _, body in told[timed[timed.index(n) - 1] + 1 : n]] if used else ["draw"]
        assert "draw" in between, "no values of an earlier turn"
        used.append(set(order))


def test_every_timed_turn_is_judged_at_calls_drawn_afterwards(bench: Make) -> None:
    made = bench(cpu=True)
    made.run("op/a", "op/b")
    told = story(made)
    judged = [(n, body["slots"]) for n, (_, body) in enumerate(told) if body["do"] == "audit_loop"]
    assert len(judged) >= 2 * 2 * 6
    for n, slots in judged:
        who, body = told[n - 1]
        assert (who, body["do"]) == ("candidate", "loop"), "nothing is asked before the judge has looked"
        assert [(who, body["do"]) for who, body in told[n + 1 : n + 3]] == [
            ("candidate", "held"),
            ("judge", "memory_use"),
        ]
        assert slots
        assert set(slots) <= set(body["order"])
    assert made.lease.story == ["exclusive", "shared"]
    assert len({slots[0] for _, slots in judged}) > 5


def test_work_on_several_threads_is_charged(bench: Make) -> None:
    made = bench(cpu=True, candidate=Side(eager_us=25.0, threads=2.0))
    (found,) = made.run()
    assert found.estimate is not None
    assert found.estimate.ratio < 0.55


@pytest.mark.parametrize("when", ["release", "audit_loop"])
def test_work_around_the_turn_is_charged(bench: Make, when: str) -> None:
    """Done between release and turn, or behind it before the judge has looked, where no clock runs: the kernel counted
    it.
    """
    made = bench(cpu=True, candidate=Side(eager_us=1.0))
    release = made.judge._answer

    def answer(do: str, body: dict[str, Any]) -> Any:
        if do == when and (do != "release" or body["side"] == "theirs"):
            made.trial.process.cpu_s += CALLS * 25e-6
        return release(do, body)

    made.judge._answer = answer  # type: ignore[method-assign]
    (found,) = made.run()
    assert found.estimate is not None
    assert found.estimate.ratio < 1.05


def test_cases_are_visited_in_turn(bench: Make) -> None:
    made = bench(cpu=True)
    made.run("op/a", "op/b", "op/c")
    timed = [a["case"] for a in made.trial.process.asked if a["do"] == "held"]
    visits = [case for n, case in enumerate(timed) if n == 0 or timed[n - 1] != case]
    assert visits == ["op/a", "op/b", "op/c"] * 3


def test_a_process_that_comes_or_goes_is_charged_all_its_time(bench: Make) -> None:
    """Whose work nobody counted."""
    made = bench(cpu=True, candidate=Side(eager_us=1.0))
    release = made.judge._answer

    def answer(do: str, body: dict[str, Any]) -> Any:
        if do == "release" and body["side"] == "theirs":
            made.trial.process.pids ^= {78}
            made.clock.advance(len(body["slots"]) * 25.0)
        return release(do, body)

    made.judge._answer = answer  # type: ignore[method-assign]
    (found,) = made.run()
    assert found.estimate is not None
    assert found.estimate.ratio < 1.05


def test_kept_outputs_vary(bench: Make) -> None:
    made = bench(cpu=True)
    made.run()
    kept = {a["keep"] for a in made.trial.process.asked if a["do"] == "loop"}
    assert min(kept) >= 2
    assert len(kept) > 3


def test_what_the_candidate_says_of_its_memory_reaches_the_judge(bench: Make) -> None:
    made = bench(cpu=True, lies=Lies(held={"aliases": [[0, 1]], "earlier": [0]}))
    made.run()
    asked = [a for a in made.judge.process.asked if a["do"] == "memory_use"]
    assert asked
    assert all((a["aliases"], a["earlier"]) == ([[0, 1]], [0]) for a in asked)


@pytest.mark.parametrize("slots", [2, 3, 64])
def test_few_and_many_slots(bench: Make, slots: int) -> None:
    made = bench(cpu=True)
    made.judge.calls = slots
    (found,) = made.run()
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(1.0, rel=0.05)
    assert found.candidate_us == pytest.approx(25.0, rel=0.05)
