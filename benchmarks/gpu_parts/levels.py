"""Honest files at every sandbox level that the machine has, as root and as an ordinary user."""

from __future__ import annotations

from benchmarks.gpu_parts.context import begin
from benchmarks.gpu_parts.tests import LEVELS, run


def main(argv: list[str] | None = None) -> None:
    run(begin("l", argv), str(LEVELS))


if __name__ == "__main__":
    main()
