"""What a candidate failed by, in the words of the report."""

from __future__ import annotations

from typing import Any

from fk_core.records.report import Evidence, Mismatch, Outcome

INSTEAD = {
    "input_mutation": "allocate the output; only arguments that the contract lists may be written to",
    "output_alias": "allocate the output anew in every call, or return memory that the contract lists as an alias",
    "state_mutation": "leave parameters and buffers as they are; keep repacked copies in non-persistent buffers",
    "lazy_output": "return plain torch.Tensor objects whose values are computed when forward returns",
}


class CandidateFault(Exception):
    """The candidate failed; this ends its trial."""

    def __init__(self, outcome: Outcome, reason: str, evidence: list[Evidence] | None = None, case: str = "") -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.evidence, self.case = outcome, reason, evidence or [], case
        self.mismatch: Mismatch | None = None
        self.judged: dict[str, Any] = {}
        """What the judge said, where it is the judge that found it."""

    @property
    def settled(self) -> bool:
        """Whether nothing says more than this: a wrong value says more than a crash, evidence more than either."""
        return bool(self.judged or self.evidence)


def stream_fault(case: str, reason: str) -> CandidateFault:
    what = f"work was left running on another stream when forward returned: {reason}"
    evidence = Evidence(
        kind="stream_escape",
        what=what,
        instead="launch on the current stream, or make it wait for the side stream before returning",
    )
    return CandidateFault(Outcome.TAMPERED, what, [evidence], case)


def host_fault(case: str, nodes: int) -> CandidateFault:
    what = f"the captured graph holds {nodes} host nodes, which run code on the CPU between kernels"
    evidence = Evidence(kind="host_node", what=what, instead="do the work in kernels on the current stream")
    return CandidateFault(Outcome.TAMPERED, what, [evidence], case)


def wrong(told: dict[str, Any], probe: dict[str, Any]) -> CandidateFault:
    """What the judge says of a call, in the words of the report; ``probe`` is the call as the plan has it."""
    outcome = Outcome(told["outcome"])
    reason = f"{describe(probe)}: {told.get('output') or 'output'}: {explain(told)}"
    evidence = []
    if outcome in (Outcome.MUTATED, Outcome.TAMPERED):
        kind = told.get("kind") or ("input_mutation" if outcome is Outcome.MUTATED else "lazy_output")
        evidence = [Evidence(kind=kind, what=reason, instead=INSTEAD.get(kind, ""))]
    fault = CandidateFault(outcome, reason, evidence, probe["case_id"] or "")
    fault.judged = told
    # The report has no case for a hidden shape, so the mismatch says itself where it was.
    fault.mismatch = _mismatch(told, "" if probe["case_id"] else describe(probe))
    return fault


def wrong_when_timed(
    outcome: Outcome, kind: str, what: str, instead: str, told: dict[str, Any], case: str
) -> CandidateFault:
    """A timed call that was not what judged calls of the case were; ``told``: what the judge says of an output of it,
    which may be nothing.
    """
    if (told.get("judgement") or {}).get("first_mismatch"):
        what = f"{what}. {told['output']}: {explain(told)}"
    fault = CandidateFault(outcome, what, [Evidence(kind=kind, what=what, instead=instead)], case)
    fault.judged, fault.mismatch = told, _mismatch(told, "in a timed call")
    return fault


def _mismatch(told: dict[str, Any], where: str) -> Mismatch | None:
    """The first wrong element, in the words of the report; ``where``: in which call."""
    judged = told.get("judgement") or {}
    first = judged.get("first_mismatch")
    if not first:
        return None
    return Mismatch(
        output=told.get("output") or judged.get("name", ""),
        index=[int(n) for n in first.get("index", [])],
        expected=_number(first.get("expected")),
        got=_number(first.get("got")),
        share_wrong=judged.get("share_wrong"),
        pattern=judged.get("pattern", ""),
        note="; ".join(str(note) for note in (where, first.get("note") or judged.get("note")) if note),
    )


def describe(probe: dict[str, Any]) -> str:
    dims = ", ".join(f"{k}={v}" for k, v in probe["dims"].items())
    return f"{probe['why']} ({dims}, {probe['dtype']})"


def in_call(reason: str, probe: dict[str, Any]) -> str:
    """The call stands in the first line, which is all that a summary shows."""
    head, newline, rest = reason.partition("\n")
    return f"{head}; the call: {describe(probe)}{newline}{rest}"


def explain(told: dict[str, Any]) -> str:
    """One sentence on a wrong output: first wrong index, expected and got, share, pattern."""
    judged = told.get("judgement") or {}
    first = judged.get("first_mismatch")
    note = told.get("note") or judged.get("note") or ""
    if not first:
        return str(note or told["outcome"])
    share = judged.get("share_wrong")
    where = "largest error at" if first.get("worst") else "first wrong at"
    # What is not finite stands in the note, as "expected is NaN".
    special = dict(part.split(" is ", 1) for part in str(first.get("note", "")).split("; ") if " is " in part)
    values = {key: first.get(key, None) for key in ("expected", "got")}
    said = ", ".join(f"{key} {special.get(key) if value is None else shown(value)}" for key, value in values.items())
    parts = [f"{where} {first.get('index')}: {said}"]
    if share is not None and not str(judged.get("pattern", "")).startswith("all elements"):
        parts.append(f"{100 * share:.3g}% of the elements wrong")
    if judged.get("pattern"):
        parts.append(str(judged["pattern"]))
    if judged.get("max_error_ratio") is not None:
        of = " of the finite elements" if Outcome.NON_FINITE in (told.get("outcome"), judged.get("outcome")) else ""
        parts.append(f"error ratio{of} {judged['max_error_ratio']:.3g}, at most {told['limit']:g} is right")
    if note:
        parts.append(str(note))
    return "; ".join(parts)


def shown(value: Any) -> str:
    """A number with the digits that a float32 has."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def outcome_of(evidence: list[Evidence]) -> Outcome:
    return Outcome.POLICY if all(e.kind == "policy" for e in evidence) else Outcome.TAMPERED


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
