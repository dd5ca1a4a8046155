"""Versions of installed packages, each looked up once: that takes a millisecond, and what is loaded stays."""

from __future__ import annotations

import functools
from importlib import metadata

NotInstalled = metadata.PackageNotFoundError


@functools.cache
def version(distribution: str) -> str:
    """Version of an installed distribution. Raises ``NotInstalled``, and looks anew the next time."""
    return metadata.version(distribution)
