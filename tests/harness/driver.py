"""A process that validates until it is killed, and says which attempts it has got answers to.

python -m tests.harness.driver PLACE
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from fk_core.harness import Harness
from tests.harness import kit


def main(place: Path) -> None:
    sources = itertools.cycle([kit.SLOW, kit.WRONG, kit.CRASHING, kit.GOOD])
    with Harness(kit.settings_at(place)) as harness:
        for source in sources:
            report = harness.validate(kit.request(source))
            sys.stdout.write(f"{report.attempt_id} {report.outcome}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
