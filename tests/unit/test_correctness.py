"""Which calls are made and in which order, and what becomes of what the judge says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fk_core.child import wire
from fk_core.correctness import Correctness, left_out
from fk_core.domain import EVERYTHING, Domain
from fk_core.fault import CandidateFault, explain
from fk_core.records.claims import StateClaim
from fk_core.records.report import BEGUN, NOT_REACHED, CaseReport, Outcome
from fk_core.trial import Trial
from tests.unit.stage import Make, Play, Stage, exception


def calls(made: Trial) -> Correctness:
    made.plan = {"probes": []} | made.plan
    return Correctness(made, {}, lambda doing, share: None)


def run(made: Trial) -> None:
    """All calls of the plan."""
    whole(calls(made))


def whole(judged: Correctness) -> None:
    judged.make()
    judged.judge_all()


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
        calls(made)._weights("k")
    assert caught.value.outcome is Outcome.MUTATED
    assert [e.kind for e in caught.value.evidence] == ["state_mutation"]
    made.judge = StateJudge({"ok": True})  # type: ignore[assignment]
    calls(made)._weights("k")
    assert made.judge.asked[-1] == ("judge_state", {"key": "k", "copied": ["weight"]})  # type: ignore[attr-defined]
    assert StateClaim(copied=[]).copied == []


# -- which calls are made ----------------------------------------------------------------------------------------------


def test_a_call_that_stands_in_is_made_outside_the_domain_only() -> None:
    narrow = {"dims": {"hidden": 96}, "dtype": "bfloat16", "unless": None}
    wide = {"dims": {"hidden": 4096}, "dtype": "bfloat16", "unless": 0}

    def supports(hidden: int) -> list[int]:
        return left_out(Domain({"hidden": frozenset({hidden})}, {}, None), [narrow, wide])

    assert left_out(EVERYTHING, [narrow, wide]) == [1]
    assert supports(4096) == [0]
    assert supports(512) == [0, 1]


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
    made.plan = {"probes": [], "holds": HOLDS, "modules": [{"key": shape["key"]} for shape in HOLDS]}
    calls(made)._hold()
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


def test_the_error_ratio_beside_a_value_that_is_not_finite_is_of_the_others() -> None:
    judged = {"first_mismatch": {"index": [0], "expected": None, "got": 0.5}, "max_error_ratio": 0.8}
    said = explain({"outcome": "NON_FINITE", "judgement": judged, "limit": 5})
    assert said.endswith("error ratio of the finite elements 0.8, at most 5 is right")
    said = explain({"outcome": "WRONG_VALUES", "judgement": judged, "limit": 5})
    assert said.endswith("error ratio 0.8, at most 5 is right")


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
    """Lays out calls that may lie in one of two regions, and writes down when it is asked what.

    ``wrong`` are the numbers of the calls that it finds wrong.
    """

    desk = SimpleNamespace(cpu=True)

    def __init__(self, story: list[str], related: dict[int, int], wrong: tuple[int, ...] = ()) -> None:
        self.story, self.related, self.wrong = story, related, wrong
        self.region: dict[int, int] = {}
        self.laid: list[int] = []
        self.taken: list[int] = []
        self.latest = 1
        self.most = 1000
        """Calls that may wait."""

    def ask(self, do: str, **body: Any) -> Any:
        return SimpleNamespace(body=getattr(self, f"_{do}", dict)(**body))

    def _lay(self, lay: list[int], skip: int | None) -> dict[str, Any]:
        if skip is not None:
            self.laid.remove(skip)
        laid = []
        for i in lay:
            region = self.region[self.related[i]] if i in self.related else 1 - self.latest
            if region in [self.region[n] for n in self.laid]:
                break
            self.region[i] = self.latest = region
            self.laid.append(i)
            laid.append({"seq": i, "key": "k", "inputs": []})
        return {"laid": laid}

    def _take(self, i: int, **said: Any) -> dict[str, Any]:
        self.story.append(f"take {i}")
        self.laid.remove(i)
        self.taken.append(i)
        return self._waiting()

    def _judge(self, most: int) -> dict[str, Any]:
        now, self.taken = self.taken[:most], self.taken[most:]
        self.story += [f"judge {i}" for i in now]
        told = [(i, WRONG | {"note": f"call {i} is off"} if i in self.wrong else {"ok": True}) for i in now]
        return {"told": told} | self._waiting()

    def _waiting(self) -> dict[str, Any]:
        return {"waiting": len(self.taken), "full": len(self.taken) > self.most}

    def _state(self, key: str) -> dict[str, Any]:
        return {"places": {}}


WRONG = {"ok": False, "outcome": "WRONG_VALUES", "output": "y", "judgement": {}, "note": "off", "limit": 5}


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
                stage.say({"returned": 0, "outputs": [], "aliases": [], "earlier": []})
        else:
            stage.say({"findings": []} if stage.body["do"] == "checkpoint" else {})

    return play


def told_of(trial: Make, calls: int, related: dict[int, int], fails: dict[int, dict[str, Any]]) -> list[str]:
    story: list[str] = []
    made = trial(calls_of(story, fails))
    made.judge = PlanJudge(story, related)  # type: ignore[assignment]
    made.plan = of_plan(calls, may_raise=tuple(fails))
    run(made)
    return story


def test_a_call_is_made_while_the_one_before_it_is_judged(trial: Make) -> None:
    story = told_of(trial, 6, {}, {})
    assert [word for word in story if word.startswith("call")] == [f"call {i}" for i in range(6)]
    assert [word for word in story if word.startswith("judge")] == [f"judge {i}" for i in range(6)]


def test_a_related_call_is_made_when_the_earlier_one_is_taken(trial: Make) -> None:
    story = told_of(trial, 6, {2: 1, 3: 1}, {})
    for i in (2, 3):
        assert story.index(f"take {i - 1}") < story.index(f"call {i}")


def test_a_call_that_may_raise_is_left_out(trial: Make) -> None:
    story = told_of(trial, 4, {2: 1}, {1: exception()})
    assert [word for word in story if word.startswith("judge")] == ["judge 0", "judge 2", "judge 3"]
    assert "call 2" in story


def test_outputs_that_lie_apart_are_noted_once(trial: Make) -> None:
    class Told(PlanJudge):
        def _judge(self, most: int) -> dict[str, Any]:
            answer = super()._judge(most)
            return answer | {"told": [(i, told | {"strides": "a last stride of 2"}) for i, told in answer["told"]]}

    made = trial(calls_of([], {}))
    made.judge = Told([], {})  # type: ignore[assignment]
    made.plan = of_plan(4)
    run(made)
    assert made.warnings == ["a last stride of 2"]


def posted(made: Trial, story: list[str]) -> None:
    """Write down, too, when calls are posted."""
    real = made.post

    def post(body: dict[str, Any]) -> tuple[int, int]:
        if body["do"] == "call":
            story.append(f"post {body['seq']}")
        return real(body)

    made.post = post  # type: ignore[method-assign]


def test_on_a_cpu_the_next_call_is_posted_before_the_judge_is_asked(trial: Make) -> None:
    story: list[str] = []
    made = trial(calls_of([], {}))
    made.judge = PlanJudge(story, {2: 1})  # type: ignore[assignment]
    made.plan = of_plan(4)
    posted(made, story)
    run(made)
    first = ["post 0", "take 0", "post 1", "judge 0", "take 1", "judge 1"]
    assert story == [*first, "post 2", "take 2", "post 3", "judge 2", "take 3", "judge 3"]


def on_gpu(trial: Make, story: list[str], play: Play, **judge: Any) -> Correctness:
    made = trial(play)
    made.on_gpu = True
    made.judge = PlanJudge(story, {}, **judge)  # type: ignore[assignment]
    made.plan = of_plan(5)
    posted(made, story)
    return calls(made)


def play_tries(fails: dict[int, dict[str, Any]]) -> Play:
    play = calls_of([], fails)
    tried = {"capturable": True, "nodes": {}}
    return lambda stage: stage.say(tried) if stage.body["do"] == "try" else play(stage)


def test_on_a_gpu_all_calls_are_made_before_any_is_judged(trial: Make) -> None:
    story: list[str] = []
    judged = on_gpu(trial, story, play_tries({}))
    judged.make()
    assert story[:10] == [f"{word} {i}" for i in range(5) for word in ("post", "take")]
    judged.judge_all()
    assert not judged.judge_some(3)
    assert [word for word in story[10:] if word.startswith("judge")] == [f"judge {i}" for i in range(5)]


def test_what_a_call_left_is_copied_before_the_candidate_runs_again(trial: Make) -> None:
    """Trying a capture runs its code, too."""
    story: list[str] = []
    play = play_tries({})

    def told(stage: Stage) -> None:
        story.append(f"candidate: {stage.body['do']}")
        play(stage)

    on_gpu(trial, story, told).make()
    assert story.index("take 0") < story.index("candidate: try") < story.index("post 1")


def test_what_takes_too_much_room_is_judged_at_once(trial: Make) -> None:
    story: list[str] = []
    judged = on_gpu(trial, story, play_tries({}))
    judged.judge.most = 2  # type: ignore[attr-defined]
    judged.make()
    assert story.index("judge 0") < story.index("take 3") < story.index("judge 2")
    judged.judge_all()
    assert [word for word in story if word.startswith("judge")] == [f"judge {i}" for i in range(5)]


@pytest.mark.parametrize("wrong", [(), (1, 2)])
def test_a_wrong_value_before_a_crash_is_what_is_said(trial: Make, wrong: tuple[int, ...]) -> None:
    with pytest.raises(CandidateFault) as caught:
        on_gpu(trial, [], play_tries({3: exception()}), wrong=wrong).make()
    assert caught.value.outcome is (Outcome.WRONG_VALUES if wrong else Outcome.CRASHED)
    assert ("call 1 is off" in caught.value.reason) is bool(wrong)


@pytest.mark.parametrize("room", [1, 1000])
def test_the_first_call_that_is_wrong_is_what_is_said(trial: Make, room: int) -> None:
    judged = on_gpu(trial, [], play_tries({}), wrong=tuple(range(5)))
    judged.judge.most = room  # type: ignore[attr-defined]
    with pytest.raises(CandidateFault) as caught:
        whole(judged)
    assert "call 0 is off" in caught.value.reason


def test_a_wrong_call_says_more_than_weights_that_were_changed(trial: Make) -> None:
    play = play_tries({})
    judged = on_gpu(
        trial, [], lambda stage: stage.say({"copied": []}) if stage.body["do"] == "state" else play(stage), wrong=(4,)
    )
    judge: Any = judged.judge
    judge._state = lambda key: {"places": {"weight": {}}}
    judge._judge_state = lambda key, copied: {"ok": False, "note": "weight is gone"}
    with pytest.raises(CandidateFault) as caught:
        judged.make()
    assert "call 4 is off" in caught.value.reason


def test_evidence_is_what_is_said_before_a_wrong_value(trial: Make) -> None:
    finding = {"kind": "timer", "what": "a clock was replaced", "where": "", "instead": "", "severity": "reject"}
    with pytest.raises(CandidateFault) as caught:
        on_gpu(trial, [], play_tries({3: exception(findings=[finding])}), wrong=(1,)).make()
    assert caught.value.outcome is Outcome.TAMPERED


def test_a_call_that_is_wrong_is_said_while_others_wait(trial: Make) -> None:
    judged = on_gpu(trial, [], play_tries({}), wrong=(2, 3))
    with pytest.raises(CandidateFault) as caught:
        whole(judged)
    assert "call 2 is off" in caught.value.reason


def test_a_case_has_begun_once_one_of_its_calls_is_made(trial: Make) -> None:
    judged = on_gpu(trial, [], play_tries({2: exception()}))
    names = ["a", "a", "b", "c", None]
    judged.cases = {name: CaseReport(id=name, outcome=Outcome.NOT_RUN, reason=NOT_REACHED) for name in "abc"}
    for probe, name in zip(judged.probes, names, strict=True):
        probe["case_id"] = name
    with pytest.raises(CandidateFault):
        judged.make()
    assert [case.reason for case in judged.cases.values()] == [BEGUN, BEGUN, NOT_REACHED]
