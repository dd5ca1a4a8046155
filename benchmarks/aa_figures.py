"""What the rows of ``benchmarks/aa.py`` say, added up over any number of runs and files."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]

NEAR = 0.005
PLANTS = {"candidate": "slower", "baseline": "faster"}
"""Which side is slowed down, and what has to be said of the candidate then."""


@dataclass
class Figures:
    """Of the baseline against itself: one operator and provider, or several together."""

    runs: int = 0
    failed: list[str] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    """How often each verdict on a case was given."""
    wrong: list[str] = field(default_factory=list)
    """Cases called faster or slower."""
    winners: int = 0
    untimed: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def readings(self) -> list[float]:
        return [ratio for values in self.ratios.values() for ratio in values]

    @property
    def near(self) -> int:
        """Readings within 0.5% of 1."""
        return sum(abs(ratio - 1) <= NEAR for ratio in self.readings)

    @property
    def medians_near(self) -> int:
        """Cases whose median over the runs is within 0.5% of 1."""
        return sum(abs(statistics.median(values) - 1) <= NEAR for values in self.ratios.values())

    @property
    def share(self) -> float | None:
        return self.near / len(self.readings) if self.readings else None

    @property
    def worst(self) -> float | None:
        return max(self.readings, key=lambda ratio: abs(ratio - 1), default=None)


@dataclass
class Planted:
    """Of a slow-down planted on one side."""

    runs: int = 0
    seen: int = 0
    """Runs whose verdict on the operator was the right one."""
    cases: int = 0
    cases_seen: int = 0
    opposite: int = 0
    """Cases called the other way about."""
    ratios: list[float] = field(default_factory=list)


def against_itself(rows: Iterable[Row]) -> dict[tuple[str, str], Figures]:
    """By operator and provider."""
    found: dict[tuple[str, str], Figures] = {}
    for row in rows:
        if row.get("kind") == "aa":
            _count(found.setdefault((row["op"], row["provider"]), Figures()), row)
    return found


def together(parts: Iterable[Figures]) -> Figures:
    """Several operators and providers as one; ``ratios`` are told apart by case and place."""
    whole = Figures()
    for number, part in enumerate(parts):
        whole.runs += part.runs
        whole.winners += part.winners
        whole.failed += part.failed
        whole.wrong += part.wrong
        whole.untimed += part.untimed
        whole.seconds += part.seconds
        whole.ratios |= {f"{number} {case}": values for case, values in part.ratios.items()}
        for word, times in part.words.items():
            whole.words[word] = whole.words.get(word, 0) + times
    return whole


def _count(figures: Figures, row: Row) -> None:
    if row["outcome"] != "PASSED":
        figures.failed.append(f"{row['op']} {row['provider']} run {row['run']}: {row['outcome']} {row['summary']}")
        return
    figures.runs += 1
    figures.winners += bool(row["winner"])
    figures.seconds.append(row["seconds"])
    for case in row["cases"]:
        figures.words[case["verdict"]] = figures.words.get(case["verdict"], 0) + 1
        if case["speedup"] is None:
            figures.untimed.append(f"{case['id']}: {case.get('reason', '')}")
            continue
        figures.ratios.setdefault(case["id"], []).append(case["speedup"])
        if case["verdict"] in ("faster", "slower"):
            figures.wrong.append(f"{case['id']} {row['provider']}: {case['verdict']} {case['speedup']:.4f}")


def planted(rows: Iterable[Row]) -> dict[str, Planted]:
    """By the side that was slowed down."""
    found = {side: Planted() for side in PLANTS}
    for row in rows:
        if row.get("kind") != "planted" or row["outcome"] != "PASSED":
            continue
        one, wanted = found[row["side"]], PLANTS[row["side"]]
        other = next(word for word in PLANTS.values() if word != wanted)
        one.runs += 1
        one.seen += row["word"] == wanted
        one.cases += len(row["cases"])
        one.cases_seen += sum(case["verdict"] == wanted for case in row["cases"])
        one.opposite += sum(case["verdict"] == other for case in row["cases"])
        if row["speedup"] is not None:
            one.ratios.append(row["speedup"])
    return found


def lines(rows: list[Row], *, cases: bool = False) -> list[str]:
    """The figures as text; with ``cases`` one line for each case, too."""
    said = []
    by_place = against_itself(rows)
    for (op, provider), figures in by_place.items():
        said.append(f"{op} {provider}: {_told(figures)}")
        if cases:
            said += [_case(case, values) for case, values in figures.ratios.items()]
    if len(by_place) > 1:
        said.append(f"all: {_told(together(by_place.values()))}")
    whole = together(by_place.values())
    said += [f"  called wrongly: {text}" for text in whole.wrong[:20]]
    said += [f"  failed: {text[:200]}" for text in whole.failed[:10]]
    for side, one in planted(rows).items():
        if one.runs:
            said.append(
                f"planted 3% on the {side}: {PLANTS[side]} in {one.seen} of {one.runs} runs, "
                f"{one.cases_seen} of {one.cases} cases (the opposite in {one.opposite}); "
                f"ratios {min(one.ratios, default=0):.4f} to {max(one.ratios, default=0):.4f}"
            )
    return said


def _told(figures: Figures) -> str:
    readings, wrong = len(figures.readings), len(figures.wrong)
    share = "" if figures.share is None else f" ({100 * figures.share:.1f}%)"
    worst = "" if figures.worst is None else f", worst {figures.worst:.4f}"
    each = f", {statistics.median(figures.seconds):.1f} s a run" if figures.seconds else ""
    return (
        f"{figures.runs} runs, {figures.near} of {readings} within 0.5% of 1{share}, "
        f"case medians {figures.medians_near} of {len(figures.ratios)}{worst}; "
        f"faster or slower {wrong}, winners {figures.winners}, not timed {len(figures.untimed)}, "
        f"failed {len(figures.failed)}{each}"
    )


def _case(case: str, values: list[float]) -> str:
    spread = 100 * statistics.pstdev(values)
    return f"  {case:58s} {min(values):.4f} to {max(values):.4f} sd {spread:.2f}% ({len(values)})"
