"""How much the runner says in one answer. ``records.claims`` takes no more: more is not the runner's doing."""

from __future__ import annotations

MOST_OUTPUTS = 64
MOST_DIMENSIONS = 64
MOST_ALIASES = 512
MOST_FINDINGS = 200
MOST_TEXT = 2000
"""Characters."""


def told(text: str, most: int) -> str:
    """The beginning of a text, as it can cross the wire: without lone surrogates."""
    return text[:most].encode("utf-8", "backslashreplace").decode("utf-8")[:most]
