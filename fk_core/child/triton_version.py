"""What a version of Triton does that another does not. The standard library only: both sides of the wall ask."""

from __future__ import annotations

import re

LAUNCHER = "__triton_launcher"
"""Name of the module that such a launcher is: a file of another name is not found in Triton's cache."""


def compiles_launchers(version: str) -> bool:
    """Whether this Triton (``3.6.0``, ``3.10.1+git1a2b``) compiles a C launcher for each signature of a kernel.

    Those before 3.7 do. False where the version can't be read: what is not prepared costs time only.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < (3, 7)
