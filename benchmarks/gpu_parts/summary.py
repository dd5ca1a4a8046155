"""The whole run on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import aa_figures
from benchmarks.gpu_parts import record
from benchmarks.gpu_parts.budget import PARTS

HIDDEN = ("part", "step", "ok", "at", "memory", "printed")


def failed(out: Path) -> list[record.Row]:
    return [row for row in record.latest(record.read(out / record.RECORDS)).values() if row["ok"] is False]


def text(out: Path) -> str:
    latest = record.latest(record.read(out / record.RECORDS))
    said = [f"{'part':22s} {'ok':>4s} {'failed':>6s} {'unsaid':>6s} {'seconds':>8s}"]
    for letter, part in PARTS.items():
        rows = [row for (one, step), row in latest.items() if one == letter and step != "part"]
        whole = latest.get((letter, "part"))
        if not rows and whole is None:
            continue
        count = {ok: sum(row["ok"] is ok for row in rows) for ok in (True, False, None)}
        spent = (whole or {}).get("seconds", 0.0)
        said.append(
            f"{letter} {part.name:20s} {count[True]:4d} {count[False]:6d} {count[None]:6d} {spent:8.1f} "
            f"{(whole or {}).get('why', '')[-200:]}".rstrip()
        )
    said += corpus(list(latest.values()))
    said += ["", *aa_figures.lines(record.read(out / record.AA_ROWS))]
    for letter in ("e", "d", "g"):
        rows = [row for (one, step), row in latest.items() if one == letter and step != "part"]
        said += ["", *(_line(row, 260) for row in rows)] if rows else []
    bad = [row for row in latest.values() if row["ok"] is False and row["part"] in "abcf"]
    bad += [row for row in latest.values() if row["ok"] is None and row.get("needs_gpu") and row.get("why")]
    said += ["", *(_line(row, 420) for row in bad[:25])] if bad else []
    return "\n".join(said)


def corpus(rows: list[record.Row]) -> list[str]:
    """How many of each kind of file got the verdict that they must get."""
    files = [row for row in rows if row["part"] == "b" and "expect" in row]
    kinds = {
        "honest": [row for row in files if row["expect"] == "accept"],
        "cheats that need a GPU": [row for row in files if row["expect"] != "accept" and row["needs_gpu"]],
        "other cheats": [row for row in files if row["expect"] != "accept" and not row["needs_gpu"]],
    }
    told = [f"{name} {sum(row['ok'] is True for row in found)} of {len(found)}" for name, found in kinds.items()]
    return [f"corpus, right of those run: {', '.join(told)}"] if files else []


def _line(row: record.Row, width: int) -> str:
    word = {True: "ok", False: "FAILED", None: "-"}[row["ok"]]
    told: dict[str, Any] = {key: value for key, value in row.items() if key not in HIDDEN and value not in ("", [], {})}
    return f"{row['part']} {word:6s} {row['step'][:70]} {_flat(told)}"[:width]


def _flat(told: dict[str, Any]) -> str:
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in told.items()
    )
