"""Whether captured calls compute anything: replays on inputs that are new to them, judged as other calls are.

A graph that was captured may hold results instead of work. So the judge draws new values, the candidate replays one
layout once, and the judge copies what that left before the candidate's code runs again; it may look at it later.
"""

from __future__ import annotations

from typing import Any

from fk_core.fault import CandidateFault, wrong_when_timed
from fk_core.judge_session import JudgeSession
from fk_core.prepared import Prepared, turn_order
from fk_core.records.claims import FullTurn, Nothing
from fk_core.records.report import Outcome
from fk_core.trial import Trial


class Audits:
    """The audits of one trial's captured cases."""

    def __init__(self, trial: Trial, judge: JudgeSession) -> None:
        self.trial, self.judge, self.random = trial, judge, trial.random
        self._taken: list[tuple[str, dict[str, Any], bool]] = []
        """Cases whose replay was copied and is to be judged, what the judge is asked then, and whether it was timed."""

    def replay(self, p: Prepared) -> None:
        """Replay a case on new secret inputs."""
        self.judge.ask("refill", case=p.timing.case.id)
        layout = self.random.randrange(len(p.layouts))
        body = turn_order(p, layout, "full") | {"prime": 0, "timed": 1, "fill": True}
        self.trial.ask(body, FullTurn)
        self._take(p, layout, {})

    def look(self, p: Prepared, layout: int, fresh: int) -> None:
        """Have what the last timed replay of a layout left judged like an audit's, on the inputs that it had: an output
        that was left from another replay is wrong. ``fresh``: what its inputs followed from.
        """
        self.trial.ask({"do": "samples", "case": p.timing.case.id, "layout": layout}, Nothing)
        self._take(p, layout, {"layout": layout, "fresh": fresh})

    def _take(self, p: Prepared, layout: int, more: dict[str, Any]) -> None:
        """Have the judge copy what a replay left: the gates' samples, and all that one call returned.

        Where the gates sample is known in the candidate's process; which call is looked at as a whole is drawn here,
        after the replay.
        """
        case, order = p.timing.case.id, p.layouts[layout].order
        call = self.random.randrange(len(order))
        whole = {"do": "outputs", "case": case, "layout": layout, "call": call, "slot": order[call]}
        self.trial.ask(whole | {"results": p.results}, Nothing)
        # The candidate's code runs only after this: it could still write to what the replay left.
        self.judge.ask("audit_take", case=case, whole=order[call], **more)
        asked = {"layout": layout, "slots": order, "sample_seed": p.seeds[layout][1]}
        self._taken.append((case, asked, "fresh" in more))

    def judge_one(self) -> bool:
        """Have the next replay that was copied judged; whether there are more.

        Raises ``CandidateFault`` where something was wrong.
        """
        if self._taken:
            case, asked, timed = self._taken.pop(0)
            told = self.judge.ask("audit", case=case, **asked).body
            if told["wrong"]:
                raise _stale(told, case, timed)
        return bool(self._taken)

    def judge_all(self) -> None:
        """Have all of them judged."""
        while self.judge_one():
            self.trial.check()


def _stale(told: dict[str, Any], case: str, timed: bool = False) -> CandidateFault:
    replay = "a timed replay of the captured calls" if timed else "replaying the captured calls on new inputs"
    what = (
        f"{replay} gave wrong values in {told['wrong']} of {told['checked']} calls: what was captured does not compute "
        "the whole result anew each time"
    )
    instead = "launch all work of a call on the current stream, from the call's own arguments, in every call"
    return wrong_when_timed(Outcome.TAMPERED, "graph_stale", what, instead, told, case)
