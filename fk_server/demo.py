"""``fk demo``: a real MCP client starts the server and has three kernels judged: honest, wrong, and a cheat."""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.types import TextContent
from rich.console import Console
from rich.text import Text

import fk_core
from fk_core.errors import Cancelled, FkError, HarnessError
from fk_core.plain import clean_text, document, failure
from fk_core.show import code, stands_in
from fk_core.tables import Rows
from fk_server.arguments import Arguments, wants_json

OP = "rms_norm"
_CANDIDATES = Path(fk_core.__file__).parent / "data" / "demo"
_WAITING = ("queued", "working")
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Candidate:
    file: str
    what: str
    expected: tuple[str, ...]
    """Outcomes that a sound harness may give."""


CANDIDATES = (
    Candidate("rms_norm_triton.py", "honest: one Triton kernel", ("PASSED",)),
    Candidate("rms_norm_wrong.py", "wrong: the mean misses an eighth of the columns", ("WRONG_VALUES",)),
    Candidate("rms_norm_cheat.py", "cheat: right, but slows the clocks down", ("TAMPERED",)),
)


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    parser = Arguments(prog="fk demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON document on stdout")
    as_json = wants_json(given)
    try:
        parser.parse_args(given)
        found = anyio.run(run, Console(stderr=as_json), own_server())
    except KeyboardInterrupt:
        return _failed(Cancelled("interrupted"), as_json)
    except Exception as error:  # noqa: BLE001  the last resort: it is shown, with its exit code
        return _failed(error, as_json)
    if as_json:
        sys.stdout.write(document(found) + "\n")
    return 0 if found["as_expected"] else 3


def _failed(error: Exception, as_json: bool) -> int:
    """Say what went wrong. The client's task groups wrap it, in as many groups as they are deep."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, FkError):
        traceback.print_exception(error)
        error = HarnessError(f"the demo failed with {type(error).__name__}: {error}", hint="Run `fk doctor`")
    if as_json:
        sys.stdout.write(failure(error.code, error.message, error.hint) + "\n")
    sys.stderr.write(f"fk demo: {clean_text(str(error))}\n")
    return error.exit_code


def own_server() -> StdioServerParameters:
    """The server of this installation, with environment and working directory of this process."""
    return StdioServerParameters(command=sys.executable, args=["-P", "-m", "fk_server"], env=dict(os.environ))


async def run(console: Console, server: StdioServerParameters) -> dict[str, Any]:
    """Everything the demo saw, as one JSON document; prints it for people on the way."""
    start = time.monotonic()
    async with Client(server) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        console.print(f"Connected after {time.monotonic() - start:.2f} s; tools: {', '.join(tools)}", highlight=False)
        ops = (await _call(client, "list_ops", {}))["ops"]
        console.print(f"Operators: {', '.join(op['name'] for op in ops)}", highlight=False)
        stub = await _call(client, "create_stub", {"op": OP})
        console.print(f"\nThe stub of {OP}:\n", highlight=False)
        console.print(code(stub["source"]), crop=False)
        verdicts = [await _judge(client, candidate) for candidate in CANDIDATES]
    console.print(_table(verdicts), crop=False)
    for verdict in verdicts:
        for line in verdict["shown"]:
            console.print(f"{verdict['file']}: {line}", markup=False, highlight=False)
    seconds = round(time.monotonic() - start, 2)
    as_expected = all(verdict["as_expected"] for verdict in verdicts)
    console.print(f"\n{'All as expected' if as_expected else 'NOT as expected'}, {seconds} s", highlight=False)
    return {
        "as_expected": as_expected,
        "seconds": seconds,
        "tools": tools,
        "ops": [op["name"] for op in ops],
        "stub_cases": stub["cases_total"],
        "verdicts": verdicts,
    }


async def _judge(client: Client, candidate: Candidate) -> dict[str, Any]:
    source = (_CANDIDATES / candidate.file).read_text(encoding="utf-8")
    start = time.monotonic()
    envelope = await _call(client, "validate_kernel", {"op": OP, "source": source, "fresh": True})
    while envelope["status"] in _WAITING and time.monotonic() - start < _LIMIT_S:
        envelope = await _call(client, "get_job", {"job_id": envelope["job_id"]})
    result = envelope.get("result") or {}
    outcome = result.get("outcome") or envelope["status"]
    bad: dict[str, Any] = next(
        (case for case in result.get("cases", []) if case["outcome"] not in ("PASSED", "NOT_RUN")), {}
    )
    mismatch, evidence = bad.get("first_mismatch"), result.get("evidence") or []
    as_expected = outcome in candidate.expected
    if "PASSED" in candidate.expected:
        as_expected = as_expected and not evidence
    elif "TAMPERED" in candidate.expected:
        as_expected = as_expected and bool(evidence)
    else:
        as_expected = as_expected and bool(mismatch)
    return {
        "file": candidate.file,
        "what": candidate.what,
        "expected": list(candidate.expected),
        "outcome": outcome,
        "as_expected": as_expected,
        "summary": result.get("summary") or envelope.get("error", ""),
        "speed": result.get("speed"),
        "first_mismatch": mismatch,
        "evidence": evidence,
        "attempt_id": envelope.get("attempt_id", ""),
        "seconds": round(time.monotonic() - start, 2),
        "shown": _shown(result, bad, evidence),
    }


def _shown(result: dict[str, Any], bad: dict[str, Any], evidence: list[dict[str, Any]]) -> list[str]:
    lines = [clean_text(str(result.get("summary", "")))]
    mismatch = bad.get("first_mismatch")
    if mismatch and not stands_in(str(result.get("summary", "")), str(bad.get("reason", ""))):
        lines.append(
            f"{bad['id']}: {mismatch['output']}{mismatch['index']} is {mismatch['got']}, expected "
            f"{mismatch['expected']}; {mismatch.get('pattern') or 'no pattern'}"
        )
    lines += [clean_text(f"{item['kind']} {item.get('where', '')}: {item['what']}") for item in evidence[:3]]
    return [line for line in lines if line]


def _table(verdicts: list[dict[str, Any]]) -> Rows:
    table = Rows("candidate", "what", "expected", "verdict", "speed", "trust", "seconds", wide=("what",))
    for verdict in verdicts:
        speed = verdict["speed"] or {}
        ratio = speed.get("speedup")
        style = "green" if verdict["as_expected"] else "red"
        table.add(
            verdict["file"],
            verdict["what"],
            ", ".join(verdict["expected"]),
            Text(verdict["outcome"], style),
            f"{speed.get('verdict', '')}" + ("" if ratio is None else f" {ratio:.3g}x"),
            str(speed.get("trust", "")),
            f"{verdict['seconds']:.2f}",
        )
    return table


async def _call(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    if result.is_error or result.structured_content is None:
        text = " ".join(block.text for block in result.content if isinstance(block, TextContent))
        raise HarnessError(f"{tool} answered with an error: {text}")
    return result.structured_content


if __name__ == "__main__":
    sys.exit(main())
