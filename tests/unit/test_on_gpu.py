"""The plan, the records and the figures of ``benchmarks.on_gpu``; what runs on the device is tried with ``--dry``."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import aa, aa_figures, on_gpu, timeline
from benchmarks.gpu_parts import budget, corpus, findings, record, summary
from benchmarks.gpu_parts.budget import allowance, chosen
from benchmarks.gpu_parts.context import Context
from fk_core.catalog import Catalog
from fk_core.child import wire
from fk_core.hearing import Hearing
from fk_core.leases.devices import cpu_device
from fk_core.records.report import CaseReport, Outcome, Speed, ValidateReport, ValidateRequest

# -- the time ----------------------------------------------------------------------------------------------------------


def spent(letters: str, left_s: float) -> dict[str, float]:
    """What each part is given when all use what they get."""
    given = {}
    parts = chosen(letters)
    for number, part in enumerate(parts):
        given[part.letter] = allowance(part, parts[number + 1 :], left_s)
        left_s -= given[part.letter]
    return given


def test_each_part_gets_at_least_what_it_needs_and_no_more_than_there_is() -> None:
    given = spent("e,a,b,g", 550)
    assert sum(given.values()) <= 550
    for letter, seconds in given.items():
        assert budget.PARTS[letter].least_s <= seconds <= budget.PARTS[letter].most_s
    assert given["e"] == 150, "the first has what it can use, where the rest still gets its least"


def test_what_a_part_leaves_over_goes_to_the_later_ones() -> None:
    a, b = chosen("a,b")
    assert allowance(a, [b], 200) == 140
    assert allowance(b, [], 190) == 190


def test_with_too_little_for_all_the_first_ones_run() -> None:
    given = spent("e,a,b,c", 130)
    assert given["e"] == given["a"] == 60
    assert given["b"] == given["c"] == 0


@pytest.mark.parametrize("left_s", [0.0, -5.0, 9.0])
def test_no_time_is_no_part(left_s: float) -> None:
    assert allowance(budget.PARTS["g"], [], left_s) == 0


def test_parts_are_chosen_in_the_order_asked_for_and_may_be_held_down() -> None:
    assert [part.letter for part in chosen("g, b,e")] == ["g", "b", "e"]
    assert chosen("f:120")[0].most_s == 120
    assert spent("f:120,b", 400) == {"f": 120, "b": 280}


@pytest.mark.parametrize("letters", ["", "x", "a,,b", "a,z"])
def test_parts_that_do_not_exist_are_named(letters: str) -> None:
    with pytest.raises(ValueError, match="no part"):
        chosen(letters)


# -- the records -------------------------------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_by_a_kill_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / record.RECORDS
    record.add(tmp_path, "b", "one", True)
    with path.open("ab") as file:
        file.write(b'{"part": "b", "step": "torn", "ok": tr')
    record.add(tmp_path, "b", "two", False)
    assert [row["step"] for row in record.read(path)] == ["one", "two"]


def test_the_last_word_on_a_step_counts(tmp_path: Path) -> None:
    record.add(tmp_path, "b", "one", False)
    record.add(tmp_path, "b", "two", None)
    record.add(tmp_path, "b", "one", True)
    found = record.latest(record.read(tmp_path / record.RECORDS))
    assert [(step, row["ok"]) for (_, step), row in found.items()] == [("one", True), ("two", None)]
    assert summary.failed(tmp_path) == []


def test_the_archive_holds_everything_but_itself(tmp_path: Path) -> None:
    out = tmp_path / "out"
    record.add(out, "a", "one", True)
    for _ in range(2):
        record.pack(out, out / "all.tar.gz")
    with tarfile.open(out / "all.tar.gz") as tar:
        assert sorted(tar.getnames()) == [".", f"./{record.RECORDS}"]
    assert sorted(path.name for path in out.iterdir()) == ["all.tar.gz", record.RECORDS]


# -- baselines against themselves --------------------------------------------------------------------------------------


def aa_row(ratios: list[float | None], *, run: int = 0, words: list[str] | None = None, **more: Any) -> dict[str, Any]:
    words = words or ["same"] * len(ratios)
    cases = [
        {"id": f"case {n}", "speedup": ratio, "verdict": word, "reason": ""}
        for n, (ratio, word) in enumerate(zip(ratios, words, strict=True))
    ]
    row = {"kind": "aa", "op": "softmax", "provider": "torch_eager", "side": "", "run": run, "outcome": "PASSED"}
    return row | {"summary": "", "winner": False, "seconds": 2.0, "cases": cases, "word": "same", "speedup": 1.0} | more


def planted_row(side: str, word: str, words: list[str], speedup: float, **more: Any) -> dict[str, Any]:
    row = aa_row([speedup] * len(words), words=words)
    return row | {"kind": "planted", "provider": "", "side": side, "word": word, "speedup": speedup} | more


def test_the_share_of_readings_near_one() -> None:
    rows = [aa_row([1.0, 1.005, 0.9949]), aa_row([1.002, 1.0051, 1.0], run=1)]
    figures = aa_figures.against_itself(rows)["softmax", "torch_eager"]
    assert (figures.runs, figures.near, len(figures.readings)) == (2, 4, 6)
    assert figures.share == pytest.approx(4 / 6)
    assert figures.worst == 0.9949 or figures.worst == 1.0051
    assert figures.medians_near == 2, "the medians are 1.001, 1.00505 and 0.99745"


def test_wrong_words_winners_and_what_was_not_timed_are_counted() -> None:
    rows = [
        aa_row([0.97, 1.0, None], words=["slower", "inconclusive", "not_timed"], winner=True),
        aa_row([], run=1, outcome="HARNESS_FAULT", summary="the twin died"),
    ]
    figures = aa_figures.against_itself(rows)["softmax", "torch_eager"]
    assert figures.words == {"slower": 1, "inconclusive": 1, "not_timed": 1}
    assert len(figures.wrong) == len(figures.untimed) == len(figures.failed) == figures.winners == 1
    assert figures.runs == 1, "what failed measured nothing"


def test_operators_and_providers_add_up() -> None:
    rows = [aa_row([1.0, 0.9]), aa_row([1.0, 1.0], provider="torch_compile"), aa_row([1.0], op="rms_norm")]
    whole = aa_figures.together(aa_figures.against_itself(rows).values())
    assert (whole.runs, whole.near, len(whole.readings), len(whole.ratios)) == (3, 4, 5, 5)


def test_planted_changes_are_seen_on_either_side() -> None:
    rows = [
        planted_row("candidate", "slower", ["slower", "inconclusive"], 0.97),
        planted_row("candidate", "same", ["same", "faster"], 1.0),
        planted_row("baseline", "faster", ["faster", "faster"], 1.03),
        planted_row("baseline", "faster", [], 1.0, outcome="GPU_FAULT"),
    ]
    found = aa_figures.planted(rows)
    assert (found["candidate"].seen, found["candidate"].runs) == (1, 2)
    assert (found["candidate"].cases_seen, found["candidate"].cases, found["candidate"].opposite) == (1, 4, 1)
    assert (found["baseline"].seen, found["baseline"].runs, found["baseline"].cases_seen) == (1, 1, 2)


def test_the_figures_can_be_told_of_nothing_and_of_everything() -> None:
    assert aa_figures.lines([]) == []
    rows = [aa_row([1.0, 0.97], words=["same", "slower"]), planted_row("candidate", "slower", ["slower"], 0.97)]
    said = "\n".join(aa_figures.lines(rows, cases=True))
    assert "1 of 2 within 0.5% of 1 (50.0%)" in said
    assert "slower in 1 of 1 runs" in said
    assert json.loads(json.dumps(rows)) == rows


def test_runs_are_dealt_out_and_other_providers_come_later() -> None:
    first, other = aa.Step("aa", "softmax", "torch_eager"), aa.Step("aa", "softmax", "torch_compile")
    plant = aa.Step("planted", "softmax", side="candidate")
    wanted = {first: 4, plant: 8, other: 4}
    done = dict.fromkeys(wanted, 0)
    order = []
    while step := aa.next_step(wanted, done):
        done[step] += 1
        order.append(step)
    assert done == wanted
    assert order[:3] == [first, plant, plant]
    before = order[: order.index(other)]
    assert before.count(first) >= 2, "half of what comes first is there by then"
    assert before.count(plant) >= 4


def test_rows_count_towards_their_step() -> None:
    assert aa.Step("aa", "softmax", "torch_eager").same(aa_row([1.0]))
    assert not aa.Step("aa", "softmax", "torch_compile").same(aa_row([1.0]))
    assert aa.Step("planted", "softmax", side="baseline").same(planted_row("baseline", "faster", [], 1.03))


@pytest.mark.parametrize("named", ["torch_eagr", "first,torch_eagr", ""])
def test_a_provider_that_no_operator_has_is_not_dropped_silently(
    named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        aa.arguments(["--providers", named])
    assert ended.value.code == 2
    assert "torch_eager" in capsys.readouterr().err, "what there is"
    for good in ("first", "all", "torch_eager", "first,torch_eager"):
        assert aa.arguments(["--providers", good]).providers == good
    assert aa.arguments(["--show-only", "--providers", named]).show_only, "it may have run elsewhere"


# -- the timeline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeats", ["0", "-3", "1"])
def test_the_timeline_shows_at_least_one_run(
    repeats: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = ValidateReport(op="rms_norm", level=1, outcome=Outcome.PASSED)

    class Judged:
        def __enter__(self) -> Judged:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def validate(self, request: ValidateRequest) -> ValidateReport:
            spec = Catalog().get(request.op)
            with Hearing(request, spec, [], cpu_device()).clock("build"):
                return report

    monkeypatch.setattr(timeline, "Harness", Judged)
    monkeypatch.setattr(timeline.time, "sleep", lambda seconds: None)
    before = wire.Channel.post, wire.Channel.answer, Hearing.clock
    timeline.main(["--repeats", repeats])
    assert (wire.Channel.post, wire.Channel.answer, Hearing.clock) == before
    shown = capsys.readouterr().out
    assert shown.count(" s  PASSED") == 2, "one that does not count, and one that does"
    assert "== build" in shown
    assert " in all" in shown


# -- what the others left ----------------------------------------------------------------------------------------------


def kept(step: str = "ok.py", part: str = "b", **changes: Any) -> dict[str, Any]:
    report = ValidateReport(
        op="softmax",
        level=1,
        outcome=Outcome.PASSED,
        correct=True,
        cases=[CaseReport(id="case", outcome=Outcome.PASSED, speedup=1.0)],
        speed=Speed(mode="gate nodes", trust="full"),
    )
    report = report.model_copy(update=changes)
    return {"part": part, "step": step, "expect": "accept", "report": report.model_dump(mode="json")}


def said(
    step: str,
    *,
    records: dict[tuple[str, str], Any] | None = None,
    reports: list[dict[str, Any]] | None = None,
    logs: dict[str, str] | None = None,
) -> bool | None:
    found = findings.derive(records or {}, reports or [], logs or {})
    return next(one.ok for one in found if step in one.step)


def test_nothing_seen_is_nothing_said() -> None:
    assert {found.ok for found in findings.derive({}, [], {})} == {None}


def test_logs_tell_of_restarts() -> None:
    assert said("restarts the judge", logs={"b.log": "fine"}) is True
    line = "fk_core.desk WARNING GPU-1: 2000 MiB of its memory did not come back after a job; zygote and judge are ..."
    assert said("restarts the judge", logs={"b.log": f"x\n{line}\n"}) is False
    assert said("quarantined", logs={"b.log": "GPU-1 is quarantined: x"}) is False


def test_the_clock_and_neighbours() -> None:
    note = "the outside clock saw 2.00 us a call more than the candidate's readings; the clock decides"
    assert said("outside clock", reports=[kept()]) is True
    assert said("outside clock", reports=[kept(), kept(warnings=[note])]) is False
    assert said("contended", reports=[kept()]) is True
    assert said("contended", reports=[kept(outcome=Outcome.CONTENDED, blame="machine")]) is False
    hog = kept("h_busy_gpu.py", outcome=Outcome.CONTENDED, blame="machine")
    assert said("contended", reports=[kept(), hog]) is True


def test_cheats_that_must_be_rejected() -> None:
    row = {"outcome": "TAMPERED", "blame": "candidate", "evidence": ["graph_stale"]}
    assert said("h_capture_skip_last.py", records={("b", "h_capture_skip_last.py"): row}) is True
    passed = {"outcome": "PASSED", "blame": None, "evidence": []}
    assert said("h_capture_skip_last.py", records={("b", "h_capture_skip_last.py"): passed}) is False


def test_eager_winners_and_twins() -> None:
    eager = kept()
    eager["report"]["speed"]["mode"] = "eager"
    assert said("eager times", reports=[eager]) is True
    eager["report"]["winner"] = True
    assert said("eager times", reports=[eager]) is False
    assert said("twin of torch.compile", records={("c", "rms_norm torch_compile"): {"runs": 2, "failed": []}}) is True
    assert said("twin of torch.compile", records={("c", "rms_norm torch_compile"): {"runs": 0, "failed": []}}) is False


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_a_summary_names_what_failed(tmp_path: Path) -> None:
    record.add(tmp_path, "b", "h_x.py", False, why="accepted")
    record.add(tmp_path, "b", "h_y.py", True)
    record.add(tmp_path, "b", "part", True, seconds=12.5)
    record.append(tmp_path / record.AA_ROWS, aa_row([1.0]))
    said = summary.text(tmp_path)
    assert "h_x.py why=accepted" in said
    assert "h_y.py" not in said
    assert "1 of 1 within 0.5%" in said
    assert [row["step"] for row in summary.failed(tmp_path)] == ["h_x.py"]


def test_a_summary_counts_the_corpus(tmp_path: Path) -> None:
    for name, ok, expect, needs_gpu in (
        ("ok_a.py", True, "accept", False),
        ("ok_b.py", False, "accept", False),
        ("h_a.py", True, "reject", True),
        ("h_b.py", None, "reject", True),
        ("h_c.py", True, "reject_or_no_gain", False),
    ):
        record.add(tmp_path, "b", name, ok, expect=expect, needs_gpu=needs_gpu)
    assert "honest 1 of 2, cheats that need a GPU 1 of 2, other cheats 1 of 1" in summary.text(tmp_path)


def test_parts_without_time_are_on_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = on_gpu.main(["--out", str(tmp_path / "out"), "--budget-s", "5", "--parts", "e,g", "--dry"])
    assert code == 0
    rows = record.read(tmp_path / "out" / record.RECORDS)
    assert [(row["part"], row["ok"]) for row in rows] == [("e", None), ("g", None)]
    assert "no time was left" in capsys.readouterr().out


def test_the_checks_run_on_what_there_is(tmp_path: Path) -> None:
    """One real part, in its own process."""
    out, archive = tmp_path / "out", tmp_path / "all.tar.gz"
    arguments = ["--out", str(out), "--budget-s", "80", "--parts", "g", "--dry", "--home", str(tmp_path / "home")]
    record.append(out / record.REPORTS, kept(outcome=Outcome.CONTENDED, blame="machine"))
    assert on_gpu.main([*arguments, "--pack", str(archive)]) == 1
    assert archive.is_file()
    found = record.latest(record.read(out / record.RECORDS))
    assert found["g", "part"]["ok"] is True
    assert found["g", "no validation is contended or blames the machine"]["ok"] is False


@pytest.mark.parametrize("argv", [["--parts", "q"], ["--parts", ""]])
def test_bad_parts_are_refused(tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        on_gpu.main(["--out", str(tmp_path), *argv])
    assert ended.value.code == 2


@pytest.mark.parametrize("program", [on_gpu._arguments, aa.arguments])
def test_every_option_is_explained(program: Callable[[list[str]], object], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program(["--help"])
    shown = capsys.readouterr().out.partition("options:")[2]
    options = re.split(r"\n  (?=-)", shown.strip())
    assert len(options) > 7
    for option in options:
        # Behind the name and, for an option with a value, its placeholder.
        words = [word for word in option.split() if not word.startswith("-") and not word.isupper()]
        assert len(words) > 2, option


def test_a_dry_run_says_of_files_for_a_gpu_that_they_need_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = next(entry for entry in corpus.entries() if entry.needs_gpu and entry.expect == "reject")
    report = ValidateReport(op=entry.task, level=1, outcome=Outcome.PASSED, correct=True)
    harness = SimpleNamespace(device=lambda: None, validate=lambda request: report, settings=None)
    desks = SimpleNamespace(harness=lambda entry: harness)
    seen = SimpleNamespace(as_dict=dict)
    monkeypatch.setattr(corpus.look, "look", lambda device: seen)
    monkeypatch.setattr(corpus.look, "settled", lambda device, before, judges: (True, seen))
    monkeypatch.setattr(corpus, "_none_left", lambda settings: [])
    monkeypatch.setattr(corpus, "len", lambda desks: 1, raising=False)
    corpus.submit(Context("b", tmp_path, 10.0, dry=True), cast(Any, desks), entry)
    row = record.read(tmp_path / record.RECORDS)[0]
    assert (row["ok"], row["why"]) == (None, "needs a GPU")
