"""Run by ``test_levels`` in a process of its own, perhaps as another user: submits files and prints what came of them.

python -m tests.adversaries.submit_all DEVICE NAME...     prints {name: [outcome, [evidence kinds]]}
"""

from __future__ import annotations

import json
import sys

from fk_core.harness import Harness
from fk_core.records.report import ValidateRequest
from tests.adversaries.corpus_index import entries

ONE_CASE = {"rms_norm": "*/decode-16/*", "silu_and_mul": "*/decode-1/*", "softmax": "*/decode-16-routing/fp32/*"}
QUICKEST = ONE_CASE | {"rms_norm": "*/decode-1/*", "silu_and_mul": "*/decode-4-routed/*"}
"""For honest files: what is looked at is how they are confined."""
ON_GPU = QUICKEST | {"silu_and_mul": "*/tp1/decode-1/*", "softmax": "*/decode-64-routing/fp32/*"}
"""The same where cases are those of a GPU."""


def main(device: str, names: list[str]) -> None:
    quickest = QUICKEST if device == "cpu" else ON_GPU
    by_name = {entry.path.name: entry for entry in entries()}
    found = {}
    with Harness() as harness:
        for name in names:
            entry = by_name[name]
            cases = (quickest if entry.expect == "accept" else ONE_CASE)[entry.task]
            request = ValidateRequest(op=entry.task, source=entry.neutral_source, cases=cases, device=device)
            report = harness.validate(request)
            found[name] = [report.outcome.value, [e.kind for e in report.evidence], report.summary[:300]]
            if report.machine is not None:
                found["sandbox"] = report.machine.sandbox
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
