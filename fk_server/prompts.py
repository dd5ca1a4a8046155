"""``prompts/*.md`` as MCP prompts: front matter with name, title, description and arguments, then the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.prompts.base import Prompt, PromptArgument

import fk_core

_ARGUMENT = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class PromptFile:
    name: str
    title: str
    description: str
    arguments: dict[str, str]
    """Name to description; all are required."""
    text: str

    def render(self, given: dict[str, str]) -> str:
        return _ARGUMENT.sub(lambda hit: given.get(hit.group(1), hit.group()), self.text)


def prompt_directory() -> Path:
    """The checkout's ``prompts``, or the copy that the wheel carries."""
    package = Path(fk_core.__file__).resolve().parent
    installed = package / "data" / "prompts"
    return installed if installed.is_dir() else package.parent / "prompts"


def parse(text: str, origin: str) -> PromptFile:
    """Read one prompt file. Raises ``ValueError`` naming the file and what is wrong with it.

    The front matter is lines ``key: value`` between two lines of three dashes; ``argument`` may come several times,
    as ``argument: name, what it is``.
    """
    parts = re.split(r"^---\s*$", text, maxsplit=2, flags=re.MULTILINE)
    if len(parts) != 3 or parts[0].strip():
        raise ValueError(f"{origin}: no front matter between two lines of ---")
    single: dict[str, str] = {}
    arguments: dict[str, str] = {}
    for line in filter(str.strip, parts[1].splitlines()):
        key, colon, value = (item.strip() for item in line.partition(":"))
        if not colon or key not in ("name", "title", "description", "argument"):
            raise ValueError(f"{origin}: front matter line {line!r}; known keys: name, title, description, argument")
        if key == "argument":
            name, _, what = value.partition(",")
            arguments[name.strip()] = what.strip()
        else:
            single[key] = value
    if missing := {"name", "title", "description"} - set(single):
        raise ValueError(f"{origin}: front matter lacks {', '.join(sorted(missing))}")
    if unknown := set(_ARGUMENT.findall(parts[2])) - set(arguments):
        raise ValueError(f"{origin}: the text uses {', '.join(sorted(unknown))}, which is no argument")
    return PromptFile(**single, arguments=arguments, text=parts[2].strip() + "\n")


def add_prompts(server: MCPServer[Any]) -> None:
    for path in sorted(prompt_directory().glob("*.md")):
        prompt = parse(path.read_text(encoding="utf-8"), path.name)
        server.add_prompt(
            Prompt(
                name=prompt.name,
                title=prompt.title,
                description=prompt.description,
                arguments=[
                    PromptArgument(name=name, description=what, required=True)
                    for name, what in prompt.arguments.items()
                ],
                fn=_renderer(prompt),
                context_kwarg=None,
            )
        )


def _renderer(prompt: PromptFile) -> Callable[..., str]:
    def render(**given: str) -> str:
        return prompt.render(given)

    return render
