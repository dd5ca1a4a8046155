"""Judge one candidate file from a Python program: python examples/python_client.py rms_norm my_kernel.py"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters


async def judge(op: str, path: str) -> dict:
    server = StdioServerParameters(command="fk", args=["serve"])
    async with Client(server) as client:
        arguments = {"op": op, "source": Path(path).read_text(encoding="utf-8")}
        result = await client.call_tool("validate_kernel", arguments)
        while not result.is_error and result.structured_content["status"] in ("queued", "working"):
            print(result.structured_content["doing"])
            result = await client.call_tool("get_job", {"job_id": result.structured_content["job_id"]})
        if result.is_error:
            raise SystemExit(result.content[0].text)
        return result.structured_content["result"]


if __name__ == "__main__":
    report = anyio.run(judge, sys.argv[1], sys.argv[2])
    print(report["outcome"], report["summary"])
    for case in report["cases"]:
        print(f"{case['outcome']:14} {case['id']}")
