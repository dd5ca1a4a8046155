from __future__ import annotations

import pytest

from fk_core.errors import FkError, UnknownTask
from fk_server.faults import ADVICE, ERROR_CHARACTERS, fault_text


def _all_errors(cls: type[FkError]) -> list[type[FkError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _all_errors(sub))]


def test_the_table_is_complete() -> None:
    """Only errors of the exception tree itself: other tests may define their own."""
    tree = [error for error in _all_errors(FkError) if error.__module__ == "fk_core.errors"]
    assert len(tree) > 15
    assert [error.__name__ for error in tree if error not in ADVICE] == []


@pytest.mark.parametrize("error", ADVICE)
def test_every_error_says_what_was_found_and_what_to_do(error: type[FkError]) -> None:
    text = fault_text(error("something was found", hint="A hint"))
    assert error.code in text
    assert "something was found" in text
    assert "A hint" in text
    assert ADVICE[error] in text


def test_a_new_error_below_a_known_one_takes_its_advice() -> None:
    class Stranger(UnknownTask):
        pass

    assert ADVICE[UnknownTask] in fault_text(Stranger("x"))


def test_long_texts_keep_the_advice() -> None:
    text = fault_text(UnknownTask("x" * 100_000))
    assert len(text) <= ERROR_CHARACTERS
    assert text.endswith(ADVICE[UnknownTask])
