"""The table of functions that nobody may replace."""

from __future__ import annotations

import json
import statistics
import sys

import pytest

from fk_core.child import guards
from fk_core.child.audit import Audit
from fk_core.child.identity import Table
from fk_core.child.origins import Origins

ORIGINS = Origins("/nowhere/candidate.py")


def another(*values: object) -> float:
    return 0.0


def one_more(*values: object) -> float:
    return 1.0


def _told(table: Table) -> list[str]:
    return [entry["what"].split(" was ")[0] for entry in table.compare(ORIGINS)]


def test_an_earlier_table_serves_as_far_as_it_is_still_right(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = Table()
    monkeypatch.setattr(json, "dumps", another)  # before any candidate's code runs: that is how it is here
    monkeypatch.setattr(statistics, "new_name", another, raising=False)
    table = Table(earlier=earlier)
    assert _told(earlier) == ["json.dumps"]
    assert _told(table) == []
    before = {space.label: space for space in earlier.spaces}
    assert {s.label for s in table.spaces if s is not before.get(s.label)} == {"json", "statistics"}

    monkeypatch.setattr(json, "dumps", one_more)
    monkeypatch.setattr(statistics, "median", another)
    monkeypatch.setattr(statistics.mean, "__defaults__", (1.0,))
    monkeypatch.setattr(statistics.NormalDist, "pdf", another)
    monkeypatch.delattr(json, "loads")
    assert sorted(_told(table)) == [
        *("json.dumps", "json.loads"),
        *("statistics.NormalDist.pdf", "statistics.median", "the code of statistics.mean"),
    ]


def test_what_was_loaded_since_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.testing

    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch.testing")
        earlier = Table()
    table = Table(earlier=earlier)
    monkeypatch.setattr(torch.testing, "assert_close", another)
    assert _told(earlier) == []
    assert _told(table) == ["torch.testing.assert_close"]


def test_a_prepared_table_is_found_nowhere_once_somebody_stands_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or who replaces a function would know what to change beside it."""
    monkeypatch.setattr(Audit, "arm", lambda audit: None)  # it can't be taken off again
    guards.prepare()
    assert len(guards._prepared) == 1
    watching = guards.Guards("/nowhere/candidate.py", "/nowhere")
    watching.arm()
    assert guards._prepared == []
    assert watching._table is not None
