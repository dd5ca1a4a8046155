"""How long an agent waits for a verdict, through the real MCP client and server over stdio.

    python benchmarks/roundtrip.py [--repeats 15] [--pause 0.5] [--cases 'rms_norm/Llama-3.1-8B/*'] [--out FILE]

Cold: from starting the server to the first verdict. Warm: sources that the server has never seen, with a pause between
one answer and the next call, as whoever writes the kernel takes longer than that. Hurried: the same without the pause,
so that a call waits until the device is given back by the one before. Seen: the same source, run afresh. Identical:
answered from the record. Where the seconds of the warm ones go is printed below.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from mcp import Client, StdioServerParameters

SOURCE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(X, R, W, Y, S, n, eps, RESIDUAL: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(X + row * n + columns, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        x += tl.load(R + row * n + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(S + row * n + columns, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps + SALTe-30)
    w = tl.load(W + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(Y + row * n + columns, x * scale * w, mask=inside)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size, self.eps = hidden_size, eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, residual=None):
        n = self.hidden_size
        x = x.contiguous()
        y = torch.empty_like(x)
        given = x if residual is None else residual.contiguous()
        total = y if residual is None else torch.empty_like(x)
        block = triton.next_power_of_2(n)
        grid = (x.numel() // n,)
        rms_norm_kernel[grid](x, given, self.weight, y, total, n, self.eps, residual is not None, block, num_warps=8)
        return y if residual is None else (y, total)
"""


def source(salt: int) -> str:
    return SOURCE.replace("SALT", str(salt))


async def validate(client: Client, text: str, cases: str, *, fresh: bool = False) -> tuple[float, dict]:
    began = time.perf_counter()
    answer = await client.call_tool(
        "validate_kernel",
        {"op": "rms_norm", "source": text, "cases": cases, "fresh": fresh, "wait_s": 240},
        read_timeout_seconds=600,
    )
    took = time.perf_counter() - began
    if answer.is_error:
        raise SystemExit(f"the tool answered an error: {answer.content}")
    body = answer.structured_content
    if body["status"] != "completed":
        raise SystemExit(f"no verdict: {body}")
    return took, body["result"]


async def measure(options: argparse.Namespace) -> dict:
    server = StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "fk_server"], env=dict(os.environ), cwd=str(Path.cwd())
    )
    began = time.perf_counter()
    out: dict = {"warm": [], "hurried": [], "seen": [], "identical": [], "reports": []}
    salt = int(time.time() * 1000) % 1_000_000_000
    async with Client(server) as client:
        await client.list_tools()
        out["tools_s"] = time.perf_counter() - began
        _, first = await validate(client, source(salt), options.cases)
        out["cold_s"] = time.perf_counter() - began
        print("first:", first["summary"], flush=True)
        if first["outcome"] != "PASSED":
            raise SystemExit(json.dumps(first, indent=1)[:4000])
        some = max(3, options.repeats // 3)
        for n in range(options.repeats):
            await asyncio.sleep(options.pause)
            took, report = await validate(client, source(salt + 1 + n), options.cases)
            out["warm"].append(took)
            out["reports"].append(report)
        for n in range(some):
            took, _ = await validate(client, source(salt + 1 + options.repeats + n), options.cases)
            out["hurried"].append(took)
        for _ in range(some):
            await asyncio.sleep(options.pause)
            took, _ = await validate(client, source(salt + 1), options.cases, fresh=True)
            out["seen"].append(took)
        for n in range(options.repeats):
            took, _ = await validate(client, source(salt + 1 + n), options.cases)
            out["identical"].append(took)
    return out


def show(out: dict) -> None:
    print(f"tools listed after {out['tools_s']:.2f} s, first verdict {out['cold_s']:.2f} s after the start")
    for name in ("warm", "hurried", "seen", "identical"):
        values = out[name]
        print(
            f"{name:10s} median {statistics.median(values):.3f} s, {min(values):.3f} to {max(values):.3f} "
            f"({len(values)} calls)"
        )
    seconds = [r["seconds"] for r in out["reports"]]
    for key in [k for k in seconds[0] if k != "detail"]:
        print(f"  {key:24s} median {statistics.median(s[key] for s in seconds):.3f} s")
    details = [s.get("detail") or {} for s in seconds]
    for key in sorted(details[0], key=lambda k: -details[0][k]):
        values = [d.get(key, 0.0) for d in details]
        if statistics.median(values) >= 0.002:
            print(f"    {key:28s} {statistics.median(values):.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between an answer and the next call")
    parser.add_argument("--cases", default="rms_norm/Llama-3.1-8B/*")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    out = asyncio.run(measure(options))
    show(out)
    if options.out:
        Path(options.out).write_text(json.dumps(out), encoding="utf-8")


if __name__ == "__main__":
    main()
