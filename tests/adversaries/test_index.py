"""The corpus and its index agree with each other."""

from __future__ import annotations

import ast

import pytest

from tests.adversaries.corpus_index import CORPUS, TASK_OF, Entry, entries


def test_every_file_is_listed_once() -> None:
    listed = [entry.path for entry in entries()]
    assert len(listed) == len(set(listed))
    assert set(listed) == {path for folder in ("hacks", "honest") for path in (CORPUS / folder).glob("*.py")}


def test_the_corpus_is_not_small() -> None:
    expectations = [entry.expect for entry in entries()]
    assert expectations.count("accept") >= 27
    assert len(expectations) - expectations.count("accept") >= 78


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.path.stem)
def test_header_and_index_agree(entry: Entry) -> None:
    header = entry.header
    assert header["operator"] == entry.operator in TASK_OF
    assert header["kind"] == entry.kind
    assert header["needs_gpu"] == str(int(entry.needs_gpu))
    assert entry.expect in ("accept", "reject", "reject_or_no_gain")
    assert (header["expect"].partition(":")[0] == "accept") is (entry.expect == "accept")
    names = {node.name for node in ast.walk(ast.parse(entry.text)) if isinstance(node, ast.ClassDef)}
    assert entry.operator in names
    assert not entry.neutral_source.startswith("#")
    assert "# kind:" not in entry.neutral_source


def test_open_cheats_are_listed_and_are_no_part_of_the_corpus() -> None:
    """Cheats that pass today wait in ``open`` until they are rejected; then they move to ``hacks``."""
    folder = CORPUS / "open"
    listed = [line.split("\t")[0] for line in (folder / "INDEX.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.py"))
    assert not {entry.path.name for entry in entries()} & set(listed)
