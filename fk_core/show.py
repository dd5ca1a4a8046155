"""How people see the records in a terminal. Everything shown is also in ``--json``, and more."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.text import Text

from fk_core.plain import clean_text
from fk_core.records.device import DoctorReport, GpuStatus
from fk_core.records.listing import OpsList, Stub
from fk_core.records.report import CaseReport, Outcome, ValidateReport
from fk_core.tables import Rows
from fk_core.verdict import between, times

_STATE_STYLE = {"ok": "green", "warn": "yellow", "missing": "yellow", "broken": "red"}


def _text(text: str, style: str = "") -> Text:
    return Text(clean_text(text), style=style)


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ratio(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    return times(value, interval).removesuffix("x") + ("" if interval is None else f" ({between(*interval)})")


def ops(found: OpsList) -> RenderableType:
    wide = ("classes", "baselines here", "models")
    table = Rows("op", "level", "classes", "cases", "baselines here", "models", wide=wide, title="Operators")
    for op in found.ops:
        table.add(
            op.name,
            str(op.level),
            ", ".join(op.entries),
            str(op.cases),
            ", ".join(op.baselines_found),
            ", ".join(op.models),
        )
    return Group(table, *(_text(note) for note in found.notes))


def stub(made: Stub) -> RenderableType:
    return Group(code(made.source), stub_notes(made))


def code(source: str) -> Group:
    """Python as it stands, neither wrapped nor padded, so that it can be copied. To be printed with ``crop=False``."""
    shown = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(clean_text(source))
    shown.justify, shown.no_wrap, shown.overflow = None, True, "ignore"
    shown.rstrip()
    return Group(shown)  # a text that is printed by itself is joined into a new one, which wraps


def stub_notes(made: Stub) -> RenderableType:
    """All of a stub but its source."""
    headings = ("case", "call", "calls per step", "baseline us", "floor us")
    table = Rows(*headings, wide=("call",), title=f"{made.cases_total} cases")
    for case in made.cases:
        calls = "" if case.calls is None else str(case.calls)
        call = case.call.partition("  #")[0]
        table.add(case.id, call, calls, _us(case.baseline_us), _us(case.floor_us))
    lines = [_text(f"- {line}") for line in made.contract]
    lines.append(_text(f"Tolerance: {made.tolerance}"))
    lines.append(_text(f"Baselines, in order: {', '.join(made.baselines)}"))
    lines += [_text(note) for note in [*made.notes, *made.next_steps]]
    if made.written_to:
        lines.append(_text(f"Written to {made.written_to}", "green"))
    return Group(*lines, table)


def report(judged: ValidateReport) -> RenderableType:
    good = judged.outcome is Outcome.PASSED
    blame = f" (blame: {judged.blame})" if judged.blame else ""
    parts: list[RenderableType] = [
        _text(f"{judged.op}: {judged.outcome.value}{blame}", "bold green" if good else "bold red"),
        _text(judged.summary),
    ]
    table = Rows("case", "outcome", "us", "baseline us", "speedup", wide=("baseline us", "speedup"))
    for case in judged.cases:
        floor = "" if case.floor_us is None else f" (floor {case.floor_us:.2f})"
        timed = case.verdict != "not_timed"
        outcome = "outside SUPPORTS" if case.routed_to_baseline else case.outcome.value
        table.add(
            _text(case.id.removeprefix(f"{judged.op}/")),
            _text(outcome, "green" if case.outcome is Outcome.PASSED else "red"),
            _us(case.candidate_us),
            _us(case.baseline_us) + floor,
            f"{case.verdict} {_ratio(case.speedup, case.ci95)}" if timed else "",
        )
    parts.append(table)
    parts += [_text(line, "red") for case in judged.cases if (line := _why(case, judged.summary))]
    speed = judged.speed
    if speed.verdict != "not_timed":
        line = f"Speed: {speed.verdict} {_ratio(speed.speedup, speed.ci95)} against {speed.baseline or 'no baseline'}"
        parts.append(_text(f"{line}; trust: {speed.trust}"))
        if speed.reason:
            parts.append(_text(f"Inconclusive: {speed.reason}"))
    parts += [_text(line) for line in _unclear(judged)]
    because = f", {judged.winner_reason}" if judged.winner_reason else ""
    parts.append(_text(f"Winner: {'yes' if judged.winner else 'no'}{because}"))
    parts += [_text(line) for line in _circumstances(judged)]
    for item in judged.evidence:
        where = f" {item.where}" if item.where else ""
        # What to do instead is a next step already, unless there were too many of them.
        instead = f"; instead: {item.instead}" if item.instead and item.instead not in judged.next_steps else ""
        parts.append(_text(f"Evidence ({item.kind}){where}: {item.what}{instead}", "red"))
    parts += [_text(f"Warning: {warning}", "yellow") for warning in judged.warnings]
    parts += [_text(f"Next: {step}") for step in dict.fromkeys(judged.next_steps)]
    if judged.log_tail and not good:
        parts.append(_text("Output of the candidate:\n" + judged.log_tail, "dim"))
    same = f", answered from attempt {judged.identical_to}" if judged.identical_to else ""
    attempt = f"Attempt {judged.attempt_id}" if judged.attempt_id else "Not on record"
    parts.append(_text(f"{attempt}, {judged.seconds.total:.2f} s{same}", "dim"))
    return Group(*parts)


_REASONS = 4
"""So many are shown, each in a line: what was measured may be part of a reason, and then no two are equal."""


def _unclear(judged: ValidateReport) -> list[str]:
    """Why cases are inconclusive, where the speed of the whole does not say it already."""
    by_reason: dict[str, list[str]] = {}
    for case in judged.cases:
        if case.verdict == "inconclusive" and case.reason and case.reason != judged.speed.reason:
            by_reason.setdefault(case.reason, []).append(case.id.removeprefix(f"{judged.op}/"))
    said = []
    for reason, ids in list(by_reason.items())[:_REASONS]:
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        said.append(f"Inconclusive, {ids[0]}{more}: {reason}")
    if left := sum(len(ids) for ids in list(by_reason.values())[_REASONS:]):
        cases = "case" if left == 1 else "cases"
        said.append(f"Inconclusive, and {left} more {cases} for other reasons, which the report as JSON has")
    return said


def _circumstances(judged: ValidateReport) -> list[str]:
    """What the candidate ran in, how much of the models' calls it takes, and what an engine has to know of it."""
    said = []
    if judged.machine is not None and judged.machine.sandbox:
        said.append(f"Sandbox: {judged.machine.sandbox}")
        share = judged.deploy.domain_share
        part = "" if share is None else "all" if share == 1 else f"{share:.3g}"
        said += [f"its domain: {part} of the models' calls"] if part else []
    if judged.machine is not None and judged.machine.crowd and judged.machine.crowd not in judged.speed.reason:
        said.append(judged.machine.crowd)
    flags = judged.deploy.model_dump(exclude={"domain_share", "reasons"})
    known = [f"{name} {'yes' if value else 'no'}" for name, value in flags.items() if value is not None]
    unknown = [name for name, value in flags.items() if value is None]
    lines = ["; ".join(said)] if said else []
    if known:
        lines.append(f"Deploy: {', '.join(known)}" + (f"; not known: {', '.join(unknown)}" if unknown else ""))
    return lines


def stands_in(summary: str, reason: str) -> bool:
    """Whether a summary, which may be cut, tells the reason of a case already."""
    return bool(reason) and reason[:400] in summary


def _why(case: CaseReport, summary: str) -> str:
    if case.outcome is not Outcome.PASSED and stands_in(summary, case.reason):
        return f"Failed: {case.id}"
    if case.outcome is Outcome.PASSED or case.first_mismatch is None:
        told = case.outcome not in (Outcome.PASSED, Outcome.NOT_RUN) and case.reason
        return f"{case.id}: {case.reason}" if told else ""
    bad = case.first_mismatch
    share = "" if bad.share_wrong is None else f", {bad.share_wrong:.1%} of the elements wrong"
    pattern = f", pattern: {bad.pattern}" if bad.pattern else ""
    return (
        f"{case.id}: {bad.output}{bad.index} is {bad.got}, expected {bad.expected}{share}{pattern}. {bad.note}".strip()
    )


def gpus(status: GpuStatus) -> RenderableType:
    headings = ("device", "name", "memory used", "holders", "waiting", "foreign", "state")
    table = Rows(*headings, wide=headings[1:], title=status.lock_dir)
    for entry in status.devices:
        used = "" if entry.memory_used_bytes is None else f"{entry.memory_used_bytes / 2**30:.1f} GiB"
        table.add(
            entry.device.uuid,
            entry.device.name,
            used,
            ", ".join(f"{holder.pid} {holder.mode}" for holder in entry.holders),
            ", ".join(str(holder.pid) for holder in entry.waiting),
            _text(", ".join(entry.foreign)),
            _text(entry.quarantined or "in use" if entry.holders or entry.quarantined else "free"),
        )
    return Group(table, _text(status.note))


def doctor(found: DoctorReport) -> RenderableType:
    table = Rows("check", "state", "found", "to do", wide=("found", "to do"), title="What works here")
    for check in found.checks:
        table.add(check.name, Text(check.state, _STATE_STYLE[check.state]), _text(check.found), _text(check.todo))
    return Group(table, _text(f"Sandbox: {found.sandbox}"))
