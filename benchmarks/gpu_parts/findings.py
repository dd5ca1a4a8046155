"""What records, reports and logs of the other parts say about each promise that only a GPU can test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_parts.record import Row


@dataclass(frozen=True)
class Finding:
    step: str
    ok: bool | None
    """None: nothing was seen that could tell."""
    said: str


CONTENDING = ("h_busy_gpu.py", "h_gpu_memory_hog.py")
"""They keep the GPU busy on purpose."""
CLOCK = "the clock decides"
LOST_MEMORY = "did not come back"
ANEW = "zygote and judge are started anew"
QUARANTINED = "is quarantined"


def derive(records: Mapping[tuple[str, str], Row], reports: list[Row], logs: Mapping[str, str]) -> list[Finding]:
    honest = [row for row in reports if _honest(row)]
    return [
        _absent("no validation restarts the judge for lost memory", logs, (LOST_MEMORY, ANEW)),
        _absent("no device is quarantined", logs, (QUARANTINED,)),
        _clock(honest),
        _contended(reports),
        _rejected(records, "h_capture_skip_last.py"),
        _rejected(records, "h_own_graph_stale.py"),
        _rejected(records, "h_stream_side_unjoined.py"),
        _gated(honest),
        _supports(reports),
        _throttled(reports),
        _eager(reports),
        _twins(records),
        _uncapturable(honest),
        _second_try(honest),
        _judge_faults(reports),
    ]


def _honest(row: Row) -> bool:
    """Reports on what is right and was disturbed by nobody."""
    return row["part"] in ("c", "d", "e") or row.get("expect") == "accept"


def _text(report: Row) -> str:
    notes = [*report["warnings"], report["summary"], report["speed"]["reason"], *report["deploy"]["reasons"]]
    return "\n".join([*notes, *(case["reason"] for case in report["cases"])])


def _timed(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if any(case["speedup"] is not None for case in row["report"]["cases"])]


def _told(rows: list[Row], many: int = 6) -> str:
    names = [f"{row['part']}:{row['step']}" for row in rows]
    return ", ".join(dict.fromkeys(names[:many])) + (f" and {len(names) - many} more" if len(names) > many else "")


def _absent(step: str, logs: Mapping[str, str], words: tuple[str, ...]) -> Finding:
    hits = [
        f"{name}: {line.strip()[:200]}"
        for name, text in logs.items()
        for line in text.splitlines()
        if any(word in line for word in words)
    ]
    return Finding(step, (not hits) if logs else None, "; ".join(hits[:4]) or f"{len(logs)} logs read")


def _none(step: str, looked: list[Row], hits: list[Row], detail: str = "") -> Finding:
    said = f"{len(hits)} of {len(looked)} reports" + (f": {_told(hits)}" if hits else "") + detail
    return Finding(step, (not hits) if looked else None, said)


def _clock(honest: list[Row]) -> Finding:
    timed = _timed(honest)
    hits = [row for row in timed if CLOCK in _text(row["report"])]
    notes = [w for row in hits for w in row["report"]["warnings"] if CLOCK in w]
    return _none("the outside clock contradicts no honest candidate", timed, hits, f" {notes[:2]}" if notes else "")


def _contended(reports: list[Row]) -> Finding:
    looked = [row for row in reports if row["step"] not in CONTENDING]
    hits = [row for row in looked if row["report"]["outcome"] in ("CONTENDED", "GPU_FAULT", "NO_GPU_IN_TIME")]
    return _none("no validation is contended or blames the machine", looked, hits)


def _judge_faults(reports: list[Row]) -> Finding:
    looked = [row for row in reports if row["part"] != "f"]
    hits = [row for row in looked if row["report"]["blame"] == "harness"]
    what = f" {hits[0]['report']['summary'][:300]}" if hits else ""
    return _none("no validation blames the harness", looked, hits, what)


def _second_try(honest: list[Row]) -> Finding:
    hits = [row for row in honest if "second try" in _text(row["report"])]
    return _none("no honest candidate needs a second try", honest, hits)


def _rejected(records: Mapping[tuple[str, str], Row], name: str) -> Finding:
    row = records.get(("b", name))
    if row is None:
        return Finding(f"{name} is rejected", None, "not run")
    said = f"{row['outcome']} {row['evidence']} {row.get('why', '')}"
    # What the device's memory does afterwards is the corpus part's business.
    return Finding(f"{name} is rejected", row["outcome"] != "PASSED" and row["blame"] == "candidate", said)


def _gated(honest: list[Row]) -> Finding:
    timed = [row for row in _timed(honest) if row["report"]["speed"]["trust"] == "full"]
    modes: dict[str, int] = {}
    for row in timed:
        mode = row["report"]["speed"]["mode"]
        modes[mode] = modes.get(mode, 0) + 1
    return Finding("honest candidates are timed with gate nodes", "gate nodes" in modes if timed else None, str(modes))


def _uncapturable(honest: list[Row]) -> Finding:
    """Which honest files could not be captured, and why: for a reader, since some say so rightly."""
    hits = [row for row in honest if row["report"]["deploy"]["graph_capturable"] is False]
    said = {row["step"]: [r[:150] for r in row["report"]["deploy"]["reasons"] if "captur" in r][:1] for row in hits}
    return Finding("honest candidates that can't be captured", None, str(said) if said else "none")


def _supports(reports: list[Row]) -> Finding:
    rows = [row for row in reports if row["step"] == "ok_rms_supports.py"]
    if not rows:
        return Finding("a declared domain is honoured", None, "not run")
    report = rows[-1]["report"]
    share = report["deploy"]["domain_share"]
    fine = report["outcome"] == "PASSED" and share is not None
    return Finding("a declared domain is honoured", fine, f"{report['outcome']}, domain share {share}")


def _throttled(reports: list[Row]) -> Finding:
    hits = [row for row in reports if "clocks were held down" in _text(row["report"])]
    again = [row for row in hits if "timed again" in _text(row["report"])]
    said = f"{len(hits)} of {len(reports)} reports say so{f': {_told(hits)}' if hits else ''}"
    return Finding("throttled cases are timed again", len(hits) == len(again) if hits else None, said)


def _eager(reports: list[Row]) -> Finding:
    timed = [row for row in _timed(reports) if row["report"]["speed"]["mode"] == "eager"]
    wins = [row for row in timed if row["report"]["winner"]]
    return _none("eager times make no winner", timed, wins)


def _twins(records: Mapping[tuple[str, str], Row]) -> Finding:
    rows = {step: row for (part, step), row in records.items() if part == "c" and step.endswith(" torch_compile")}
    bad = [step for step, row in rows.items() if row.get("failed") or not row.get("runs")]
    ran = {step: row.get("runs") for step, row in rows.items()}
    return Finding("the twin of torch.compile runs", (not bad) if rows else None, str(bad or ran))


def as_detail(found: Finding) -> dict[str, Any]:
    return {"said": found.said[:1500]}
