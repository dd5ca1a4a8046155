"""Which production kernel libraries a caller can permit a candidate to import."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from fk_core.child import production
from fk_core.child.baselines.base import policy_libraries
from fk_core.errors import RequestError


def check_allowed(names: Sequence[str]) -> None:
    """Raise ``RequestError`` for a library that needs no leave: misspelt, it would have the candidate refused later."""
    known = sorted({*production.LIBRARIES, *policy_libraries()})
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            raise RequestError(
                f"allow names {name[:80]!r}, which is no production kernel library"
                + (f"; nearest: {', '.join(close)}" if close else ""),
                hint=f"These can be allowed: {', '.join(known)}. Whatever else is installed needs no leave",
            )
