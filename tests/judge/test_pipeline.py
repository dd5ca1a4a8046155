"""The calls of a plan in the order in which judge and candidate really work: one is made while another is judged."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fk_core.child import foresight
from fk_core.correctness import Correctness, left_out
from fk_core.domain import EVERYTHING
from fk_core.fault import CandidateFault
from fk_core.records.claims import Claim, Findings, TryClaim
from fk_core.records.report import CaseReport, Outcome
from fk_core.settings import Limits
from tests.judge.court import CATALOG, Court, Forward, case_of, honest

Make = Callable[..., "InCourt"]


class InCourt:
    """Both the trial and the judge session of a court, whose candidate works as soon as it is asked."""

    def __init__(self, court: Court, ahead: int, late: bool) -> None:
        self.court, self.every = court, ahead
        self.plan = court.job.opened()
        for fd in self.plan.pop("fds"):
            os.close(fd)
        self.judge = self
        self.domain, self.random, self.on_gpu = EVERYTHING, random.Random(3), late
        self.late = late
        """Whether calls are judged when all are made, as on a GPU."""
        self.settings = SimpleNamespace(limits=Limits())
        self.warnings: list[str] = []
        self.leave = left_out(EVERYTHING, self.plan["probes"])
        self.answers: list[Any] = []

    def ask(self, what: Any, claim: type[Claim] | None = None, **body: Any) -> Any:
        if isinstance(what, dict) and what["do"] == "try":
            return TryClaim(capturable=True)
        if claim is None:
            if what == "take" and self.every:
                answers = bool(self.random.getrandbits(1))
                self.court.job.handle({"do": "ahead", "most": self.every, "answers": answers, "leave": []})
            return SimpleNamespace(body=self.court.job.handle({"do": what, **body}))
        if claim is Findings:
            return Findings(findings=[])
        return claim.model_validate(self.court.runner.handle(what, []))

    def make(self, key: str) -> None:
        if key not in self.court.runner.modules:
            self.court.runner.do_make(self.court.modules[key], [])

    def made(self) -> list[str]:
        return sorted(self.court.runner.modules)

    def post(self, body: dict[str, Any]) -> tuple[int, int]:
        self.answers.append(self.court.runner.handle(body, []))
        return 0, len(self.answers)

    def collect(self, ticket: tuple[int, int], do: str, claim: type[Claim], *, timeout_s: float) -> Claim:
        return claim.model_validate(self.answers[ticket[1] - 1])

    def collect_beside(
        self, ticket: tuple[int, int], do: str, claim: type[Claim], work: Callable[[], bool], *, timeout_s: float
    ) -> Claim:
        return self.collect(ticket, do, claim, timeout_s=timeout_s)

    def checkpoint(self, where: str, work: Callable[[], bool]) -> None:
        pass

    def check(self) -> None:
        pass

    def weigh(self, findings: Findings) -> None:
        pass

    def run(self) -> dict[str, CaseReport]:
        ids = {p["case_id"] for p in self.plan["probes"] if p["case_id"]}
        reports = {i: CaseReport(id=i, outcome=Outcome.NOT_RUN, reason="", calls=1) for i in ids}
        calls = Correctness(self, reports, lambda doing, share: None)  # type: ignore[arg-type]
        calls.make()
        assert bool(calls._waiting) == self.late
        calls.judge_all()
        return reports


@pytest.fixture
def sit() -> Iterator[Make]:
    courts: list[Court] = []

    def begin(op: str, form: str, wrap: Any = honest, *, ahead: int = 0, seed: int = 7, late: bool = False) -> InCourt:
        court = Court(op, wrap, cases=[case_of(CATALOG.get(op), form)], seed=seed)
        courts.append(court)
        return InCourt(court, ahead, late)

    yield begin
    for court in courts:
        court.close()


def one_buffer(forward: Forward, state: dict[str, Tensor]) -> Forward:
    """Gives the memory of its last output again."""
    kept: dict[tuple[int, ...], Tensor] = {}

    def call(*given: Tensor) -> Tensor:
        made: Tensor = forward(*given)
        return kept.setdefault(tuple(made.shape), made).copy_(made)

    return call


def late(forward: Forward, state: dict[str, Tensor]) -> Forward:
    """Changes an output that it returned two calls ago."""
    before: list[Tensor] = []

    def call(*given: Tensor) -> Tensor:
        made: Tensor = forward(*given)
        if len(before) >= 2:
            before[-2].zero_()
        before.append(made)
        return made

    return call


FORMS = [("rms_norm", "residual"), ("softmax", "plain"), ("silu_and_mul", "plain")]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 7, 1000])
@pytest.mark.parametrize("which", FORMS, ids=lambda which: which[0])
def test_an_honest_candidate_passes(sit: Make, which: tuple[str, str], ahead: int, late: bool) -> None:
    made = sit(*which, ahead=ahead, late=late)
    reports = made.run()
    assert all(report.max_error_ratio is not None for report in reports.values())
    assert not made.court.job.calls.laid
    assert not made.court.job.calls.taken


def everything(made: InCourt, leave: list[int] | None = None) -> None:
    """Have all be worked out that can be."""
    for answers in (False, True):
        while made.court.job.handle({"do": "ahead", "most": 5, "answers": answers, "leave": leave or []})["more"]:
            pass


def test_calls_that_will_not_be_made_are_left_alone(sit: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sit("softmax", "plain")
    real, asked = made.court.job.oracle.reference, []

    def reference(call: Any, *rest: Any) -> Any:
        asked.append(call)
        return real(call, *rest)

    monkeypatch.setattr(made.court.job.oracle, "reference", reference)
    everything(made, leave=list(range(3, len(made.plan["probes"]))))
    assert 0 < len(asked) <= 2 * 3
    assert sorted(made.court.job.calls.ahead._known) == [0, 1, 2][: len(made.court.job.calls.ahead._known)]


def test_what_fails_ahead_fails_where_it_is_needed(sit: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sit("softmax", "plain")
    real = made.court.job.oracle.reference

    def reference(call: Any, *rest: Any) -> Any:
        if call.distribution != "normal":
            raise RuntimeError("CUDA out of memory")
        return real(call, *rest)

    monkeypatch.setattr(made.court.job.oracle, "reference", reference)
    everything(made)
    assert made.court.job.calls.ahead._known
    with pytest.raises(RuntimeError, match="out of memory"):
        made.run()


def test_what_is_worked_out_ahead_is_what_would_be_worked_out_later(sit: Make) -> None:
    now, before = sit("rms_norm", "residual"), sit("rms_norm", "residual", ahead=1000)
    everything(before)
    assert before.court.job.calls.ahead._known
    for index in range(len(now.plan["probes"])):
        one, other = (made.court.job.calls.ahead.take(index) for made in (now, before))
        assert list(one.stored) == list(other.stored)
        for name, tensor in one.stored.items():
            assert torch.equal(tensor.view(torch.int16), other.stored[name].view(torch.int16))
        for name, pair in one.expected.items():
            for mine, theirs in zip(pair, other.expected[name], strict=True):
                assert (mine is None and theirs is None) or torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7))
        assert one.baseline == other.baseline
    assert before.court.job.calls.ahead._bytes == 0


def test_what_is_known_ahead_is_bounded(sit: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "MOST_BYTES", 100_000)
    made = sit("rms_norm", "residual")
    ahead = made.court.job.calls.ahead
    while ahead.inputs(10, ()):
        assert ahead._bytes <= 100_000
    assert 0 < len(ahead._known) < len(made.plan["probes"])
    made.run()
    assert ahead._bytes == 0


def test_calls_that_were_made_are_not_worked_out_again(sit: Make) -> None:
    made = sit("softmax", "plain")
    made.run()
    assert not made.court.job.calls.ahead.inputs(1000, ())
    done = [p for p in made.court.job.probes if p.unless is None]
    assert len(made.court.job.calls.starts) >= len(done)
    assert not made.court.job.calls.ahead._known


@pytest.mark.parametrize("judged_late", [False, True])
@pytest.mark.parametrize("wrap", [one_buffer, late])
@pytest.mark.parametrize("seed", range(3))
def test_memory_that_is_used_again_is_found(sit: Make, wrap: Any, judged_late: bool, seed: int) -> None:
    with pytest.raises(CandidateFault) as caught:
        sit("softmax", "plain", wrap, ahead=7, seed=seed, late=judged_late).run()
    assert caught.value.outcome is Outcome.MUTATED
    assert [e.kind for e in caught.value.evidence] == ["output_alias"]


def test_the_output_of_a_call_is_looked_at_behind_the_next_one_at_the_same_address(sit: Make) -> None:
    """A related call is laid out before the one that it relates to is judged: its outputs are copied again all the
    same."""
    made = sit("softmax", "plain")
    asked: list[dict[str, Any]] = []
    real = made.post
    made.post = lambda body: (asked.append(body), real(body))[1]  # type: ignore[method-assign]
    made.run()
    probes = made.court.job.probes
    for body in asked:
        seq = body["seq"]
        if probes[seq].base == seq - 1 and probes[seq].placement == "same":
            assert [a["seq"] for a in body["again"]][:1] == [seq - 1]
            return
    raise AssertionError("no related call was made right behind its own")


def test_what_was_found_is_told_before_the_judge_fails(sit: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sit("softmax", "plain", late=True)
    desk = made.court.job.calls
    real = desk.judge

    def judge(i: int) -> dict[str, Any]:
        if len(desk.taken) % 3 == 0:
            raise RuntimeError("planted")
        return real(i)

    for i in range(6):
        laid = desk.lay(i)
        made.make(laid["key"])
        made.court.runner.do_call({"do": "call", **laid}, [])
        desk.take(i, 0, [], [], [])
        desk.file()
    monkeypatch.setattr(desk, "judge", judge)
    desk.taken.pop(0)
    said = desk.judge_some(4)
    assert [i for i, _ in said] == [1]
    assert not said[0][1]["ok"], "nothing was said of the outputs"


def test_outputs_that_are_kept_are_kept_alone(sit: Make) -> None:
    """Not with the arguments, and not with what else was copied in one piece."""
    made = sit("rms_norm", "residual")
    made.plan["holds"] = []
    made.run()
    kept = made.court.job.calls.small.values()
    assert kept
    assert sum(t.untyped_storage().nbytes() for t in kept) == sum(t.numel() * t.element_size() for t in kept)
