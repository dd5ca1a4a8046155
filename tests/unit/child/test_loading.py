"""What a report shows of an exception of the candidate."""

from __future__ import annotations

from pathlib import Path

import pytest

from fk_core.child.loading import _traceback, describe, import_file

RAISES = "def f(n):\n    if n: f(n - 1)\n    raise ValueError('no')\n"


def caught(scratch: Path, source: str, depth: int | None = None) -> BaseException:
    path = scratch / "candidate.py"
    path.write_text(source, encoding="utf-8")

    def run() -> None:
        module = import_file(str(path))
        if depth is not None:
            module.f(depth)

    with pytest.raises(ValueError) as raised:
        run()
    return raised.value


def test_a_traceback_begins_with_the_candidate_s_frames(tmp_path: Path) -> None:
    told = describe(caught(tmp_path, RAISES, 1), str(tmp_path))["trace"].splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert told[1] == '  File "candidate.py", line 2, in f'
    assert told[-1] == "ValueError: no"
    assert not any("loading.py" in line or __file__ in line for line in told)


def test_nor_does_that_of_an_import_show_how_it_was_imported(tmp_path: Path) -> None:
    told = describe(caught(tmp_path, "import json\njson.loads('{')\n"), str(tmp_path))["trace"]
    assert told.splitlines()[1] == '  File "candidate.py", line 2, in <module>'
    assert "importlib" not in told
    assert "json" in told


def test_of_a_deep_one_the_candidate_s_first_frame_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    source = f"import json\n{RAISES}def g():\n    f(0)\n"
    path = tmp_path / "elsewhere.py"
    path.write_text("def deep(n, then):\n    return deep(n - 1, then) if n else then()\n", encoding="utf-8")
    deep = import_file(str(path)).deep
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "candidate.py").write_text(source + "def h(deep):\n    deep(40, g)\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no") as raised:
        import_file(str(scratch / "candidate.py")).h(deep)
    told = describe(raised.value, str(scratch))["trace"]
    assert told.splitlines()[1] == '  File "candidate.py", line 8, in h'
    assert told.count("  File ") <= 8
    assert told.splitlines()[3] == "  [... 36 frames]", "of 44: h, 41 of deep, g and f"
    assert "line 6, in g" in told
    assert "line 4, in f" in told
    assert told.splitlines()[-1] == "ValueError: no"


def test_without_a_frame_of_the_candidate_the_last_ones_are_kept(tmp_path: Path) -> None:
    told = describe(caught(tmp_path, RAISES, 1), "/elsewhere")["trace"]
    assert told.count("  File ") >= 2


CHAINED = """
def deep(n):
    if n: (lambda: deep(n - 1))()
    raise KeyError(n)

def deeper(n):
    if n: return (lambda: deeper(n - 1))()
    try:
        deep(15)
    except KeyError as error:
        raise OSError("cause") {how}

def f(n):
    try:
        deeper(n)
    except OSError:
        raise ValueError("no")
"""


@pytest.mark.parametrize("how", ["from error", ""])
def test_of_what_led_to_it_no_more_is_kept(how: str, tmp_path: Path) -> None:
    told = describe(caught(tmp_path, CHAINED.replace("{how}", how), 15), str(tmp_path))["trace"]
    assert len(told) <= 2000
    full = _traceback(caught(tmp_path, CHAINED.replace("{how}", how), 15), str(tmp_path))
    by_exception = full.split("Traceback (most recent call last):")[1:]
    assert [part.count("  File ") for part in by_exception] == [8, 8, 1]
    assert ["  [... 24 frames]\n" in part for part in by_exception] == [True, True, False]
    assert [error in part for error, part in zip(("KeyError", "OSError", "ValueError"), by_exception, strict=True)]


def test_of_frames_elsewhere_the_last_ones_are_kept(tmp_path: Path) -> None:
    told = describe(caught(tmp_path, RAISES, 20), "/elsewhere")["trace"].splitlines()
    assert told[1].startswith("  [... ")
    assert sum(line.startswith("  File ") for line in told) <= 8
    assert told[-1] == "ValueError: no"


def test_a_long_text_keeps_the_candidate_s_frames(tmp_path: Path) -> None:
    told = describe(caught(tmp_path, "raise ValueError('x' * 9000)\n"), str(tmp_path))["trace"]
    assert 'File "candidate.py", line 1' in told
    assert len(told) <= 2000
