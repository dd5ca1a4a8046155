"""No honest file is flagged on a GPU, at any sandbox level that the machine has, as root or as an ordinary user."""

from __future__ import annotations

import pytest

from tests.adversaries.corpus_index import entries
from tests.adversaries.test_levels import WAYS, no_flags, part

# What runs a compiler takes half a minute: part b of benchmarks/on_gpu.py tries it.
HONEST = [e for e in entries() if e.expect == "accept" and not e.slow]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("level", "user"), WAYS)
def test_no_honest_file_is_flagged(level: str, user: str) -> None:
    no_flags(part(WAYS.index((level, user)), HONEST), level, user, device="cuda")
