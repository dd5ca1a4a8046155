"""Judge one candidate file from a Python program: python examples/python_client.py rms_norm my_kernel.py

Exit code 0 if it passed, 1 if not, 2 if the request was wrong, 3 if there is no verdict.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters


async def judge(op: str, source: str) -> tuple[dict[str, Any], str, int]:
    """The report; if there is none, why, and the exit code."""
    # Without ``env`` the server would get PATH and HOME and little else, and so another FK_HOME, device and lease.
    server = StdioServerParameters(command=sys.executable, args=["-m", "fk_server"], env=dict(os.environ))
    async with Client(server) as client:
        result = await client.call_tool("validate_kernel", {"op": op, "source": source})
        while not result.is_error and result.structured_content["status"] in ("queued", "working"):
            print(result.structured_content["doing"])
            result = await client.call_tool("get_job", {"job_id": result.structured_content["job_id"]})
        if result.is_error:
            return {}, result.content[0].text, 2
        return result.structured_content["result"] or {}, result.structured_content["error"], 3


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        source = Path(sys.argv[2]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"{sys.argv[2]} can't be read: {error}", file=sys.stderr)
        return 2
    report, problem, code = anyio.run(judge, sys.argv[1], source)
    if not report:
        print(problem, file=sys.stderr)
        return code
    print(report["summary"])
    for case in report["cases"]:
        print(f"{case['outcome']:14} {case['id']}")
    return 0 if report["outcome"] == "PASSED" else 1


if __name__ == "__main__":
    sys.exit(main())
