"""One thing that was seen against a candidate, as it crosses the wire."""

from __future__ import annotations

from fk_core.child.bounds import told

Finding = dict[str, str]
REJECT, POLICY, WARN = "reject", "policy", "warn"


def finding(kind: str, what: str, *, where: str = "", instead: str = "", severity: str = REJECT) -> Finding:
    """One thing that was seen; ``severity`` is ``reject``, ``policy`` or ``warn``."""
    return {"kind": kind, "what": told(what, 400), "where": where, "instead": instead, "severity": severity}
