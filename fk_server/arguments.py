"""Arguments of the two programs here, whose wrong usage is an error like any other wrong request."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from fk_core.errors import RequestError


class Arguments(argparse.ArgumentParser):
    """Raises ``RequestError`` where argparse would print and exit."""

    def __init__(self, **known: Any) -> None:
        super().__init__(**known, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise RequestError(message, hint=f"{' '.join(self.format_usage().split())}; see `{self.prog} --help`")


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether to answer in JSON, also where the arguments can't be understood."""
    return any(argument == "--json" or argument.startswith("--json=") for argument in arguments)
