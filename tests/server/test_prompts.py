from __future__ import annotations

import pytest

from fk_server.prompts import parse, prompt_directory

_GOOD = "---\nname: n\ntitle: T\ndescription: D\nargument: op, the operator\n---\nWrite {op}.\n"


def test_front_matter_and_text() -> None:
    prompt = parse(_GOOD, "x.md")
    assert prompt.arguments == {"op": "the operator"}
    assert prompt.render({"op": "a{op}b"}) == "Write a{op}b.\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no front matter", "no front matter"),
        (_GOOD.replace("title: T\n", ""), "lacks title"),
        (_GOOD.replace("name: n", "nom: n"), "known keys"),
        (_GOOD.replace("argument: op, the operator\n", ""), "uses op"),
    ],
)
def test_a_malformed_file_names_itself_and_its_fault(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        parse(text, "broken.md")
    assert "broken.md" in str(caught.value)


def test_the_shipped_prompts_are_sound() -> None:
    files = sorted(prompt_directory().glob("*.md"))
    assert files
    for path in files:
        assert parse(path.read_text(encoding="utf-8"), path.name).name == path.stem
