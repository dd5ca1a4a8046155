"""What is right for the calls of one job: the oracle, the rules, and what the production baseline's own errors excuse.

One standard for every call that is looked at: those of the plan, those whose outputs are all kept, and timed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fk_core.child import compare, inputs
from fk_core.child.calls import Call, output_layout
from fk_core.child.capturing import Forward
from fk_core.child.oracle import Oracle, Reference

Values = Mapping[str, Tensor]


class Standard:
    """``states``: weights by module; ``baseline``: gives the production baseline of a module."""

    def __init__(
        self,
        task: Mapping[str, Any],
        oracle: Oracle,
        states: Mapping[str, dict[str, Tensor]],
        baseline: Callable[[str], Forward],
        baseline_name: str,
    ) -> None:
        self.task, self.oracle, self.states = task, oracle, states
        self.baseline, self.baseline_name = baseline, baseline_name

    def references(self, call: Call, key: str, values: dict[str, Tensor]) -> dict[str, Reference]:
        """The oracle's word on every output, and on every argument that must change."""
        state = self.states[key]
        found = self.oracle.reference(call, state, values)
        if call.distribution in inputs.FLUSHABLE:
            other = self.oracle.reference(call, inputs.flushed(state), inputs.flushed(values))
            found = inputs.allow_flush(found, other, self.task["tolerance"]["u"])
        return found

    def rules(self, call: Call, generic: bool) -> dict[str, compare.Rule]:
        """``generic``: the values have no structure, so that the rms and row-scale tests hold."""
        form = self.form(call)
        layout = output_layout(self.task, call)
        tolerance = self.task["tolerance"]
        rules = {
            name: compare.Rule(
                kind=form["outputs"][name]["kind"],
                limit=tolerance["limit"],
                u=tolerance["u"],
                generic=generic,
                dtype=layout[name][1],
            )
            for name in form["outputs"]
        }
        for name, word in form["mutates"].items():
            if word == "must":
                rules[name] = compare.Rule(limit=tolerance["limit"], u=tolerance["u"], generic=generic)
        return rules

    def form(self, call: Call) -> dict[str, Any]:
        found: dict[str, Any] = self.task["entries"][call.entry]["forms"][call.form]
        return found

    def of_baseline(
        self, call: Call, key: str, values: Values, expected: dict[str, Reference], rules: dict[str, compare.Rule]
    ) -> list[compare.Judgement] | None:
        """How the production baseline does on the same values; None where it can't take them."""
        try:
            given = [values[name].clone() for name in call.arguments]
            with torch.no_grad():
                result = self.baseline(key)(*given)
        except Exception:  # noqa: BLE001 - a baseline may refuse shapes that no case has
            return None
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        form = self.form(call)
        got = dict(zip(form["outputs"], outputs, strict=True))
        after = dict(zip(call.arguments, given, strict=True))
        items = [
            compare.Item(n, after[n] if n in form["mutates"] and n not in got else got.get(n), ref, mag, rules[n])
            for n, (ref, mag) in expected.items()
        ]
        return compare.judge_many(items)

    def beside(
        self,
        judged: list[compare.Judgement],
        baseline: list[compare.Judgement],
        values: Mapping[str, Tensor | None],
        expected: dict[str, Reference],
        rules: dict[str, compare.Rule],
    ) -> tuple[list[compare.Judgement], str]:
        """Judge again where the baseline's own errors allow more; leave out what the baseline itself gets wrong.

        ``values``: outputs, and arguments after the call. Gives what is wrong all the same, and what was left out.
        """
        by_name = {j.name: j for j in baseline}
        wrong, skipped = [], []
        for one in judged:
            if one.ok:
                continue
            beside = by_name.get(one.name)
            if beside is None:
                wrong.append(one)
            elif not beside.ok:
                skipped.append(one.name)
            else:
                ref, mag = expected[one.name]
                second = compare.judge(one.name, values[one.name], ref, mag, rules[one.name].beside(beside))
                if not second.ok:
                    wrong.append(second)
        note = ""
        if skipped:
            note = f"the production baseline {self.baseline_name} gets {', '.join(skipped)} of this call wrong itself"
        return wrong, note

    def first_wrong(
        self,
        call: Call,
        key: str,
        given: dict[str, Tensor],
        got: Mapping[str, Tensor | None],
        after: Values | None = None,
    ) -> compare.Judgement | None:
        """The first output that is wrong and that the baseline's errors don't excuse; with ``after``, which are the
        arguments after the call, also the first of these.
        """
        expected, rules = self.references(call, key, given), self.rules(call, generic=False)
        judged = self._judge(call, given, got, after, expected, rules)
        wrong = [j for j in judged if not j.ok]
        if wrong:
            baseline = self.of_baseline(call, key, given, expected, rules)
            if baseline is not None:
                wrong, _ = self.beside(judged, baseline, {**(after or {}), **got}, expected, rules)
        return wrong[0] if wrong else None

    def all_right(
        self, call: Call, key: str, given: dict[str, Tensor], got: Mapping[str, Tensor | None], after: Values
    ) -> bool:
        """Whether all outputs, and the arguments ``after`` the call, are right without any excuse."""
        expected, rules = self.references(call, key, given), self.rules(call, generic=False)
        return all(j.ok for j in self._judge(call, given, got, after, expected, rules))

    def _judge(
        self,
        call: Call,
        given: dict[str, Tensor],
        got: Mapping[str, Tensor | None],
        after: Values | None,
        expected: dict[str, Reference],
        rules: dict[str, compare.Rule],
    ) -> list[compare.Judgement]:
        if after is None:
            return compare.judge_many([compare.Item(name, got[name], *expected[name], rules[name]) for name in got])
        mutates = self.form(call)["mutates"]
        return compare.judge_call(got, expected, rules, before=given, after=after, mutates=mutates)
