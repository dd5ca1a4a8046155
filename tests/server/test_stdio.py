"""The server as a process on pipes: what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from tests.server.fakes import report_of
from tests.server.wire_client import REPOSITORY, WireClient, alive, scrubbed_environment, wait_for


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def wire(home: Path) -> Iterator[WireClient]:
    client = WireClient(home)
    yield client
    client.kill()


def test_every_byte_of_stdout_is_json(wire: WireClient, home: Path) -> None:
    wire.initialize()
    assert wait_for((home / "warmed").exists), "by then it has printed in three ways"
    wire.request(1, "tools/list")
    assert len(wire.answer(1)["result"]["tools"]) == 6
    wire.call(2, "validate_kernel", {"op": "rms_norm", "source": "#huge"})
    assert wire.answer(2)["result"]["structuredContent"]["result"]["outcome"] == "WRONG_VALUES"
    wire.process.stdin.close()  # type: ignore[union-attr]
    assert wire.exit_code() == 0
    assert b"prints" not in b"".join(wire.seen)
    for line in wire.seen:
        json.loads(line)


def test_a_server_starts_in_a_working_directory_that_was_deleted(tmp_path: Path, home: Path) -> None:
    program = (
        "import os, sys; os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "os.environ |= {'FK_HOME': sys.argv[2], 'FK_LOCK_DIR': sys.argv[2] + '/locks'}\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'fk_server'])"
    )
    client = WireClient(home, command=[sys.executable, "-c", program, str(tmp_path / "gone"), str(home)])
    try:
        client.initialize()
        client.call(1, "validate_kernel", {"op": "softmax", "path": "kernel.py"})
        answer = client.answer(1)["result"]
        assert answer["isError"]
        assert "outside the allowed roots (none)" in answer["content"][0]["text"]
        client.process.stdin.close()  # type: ignore[union-attr]
        assert client.exit_code() == 0
    finally:
        client.kill()


def test_the_server_program_imports_nothing_heavy() -> None:
    """Any of these would cost more than the second in which the tools must be listed."""
    program = (
        "import sys, fk_server.app, fk_server.stdio, fk_server.web, fk_core.commands, fk_core.harness\n"
        "bad = [m for m in ('torch', 'triton', 'scipy') if m in sys.modules]\n"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_sdk_client_over_stdio(home: Path, mode: str) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "tests.server.serve_fake", str(home)],
        env={"PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
    )
    async with Client(server, mode=mode) as client:
        answer = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"}))
        assert answer["status"] == "completed"


def test_half_a_surrogate_pair_in_a_request_is_answered(wire: WireClient) -> None:
    wire.initialize()
    arguments = '{"op": "rms_norm", "source": "\\ud800"}'
    wire.send(
        f'{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"validate_kernel","arguments":{arguments}}}}}'
    )
    refused = wire.answer(5)
    assert refused["result"]["isError"]
    assert "surrogate" in refused["result"]["content"][0]["text"]
    wire.send('{"jsonrpc":"2.0","id":6,"method":"tools/list","params":{"cursor":"\\udfff"}}')
    assert "error" in wire.answer(6)
    wire.send("this is not JSON")
    wire.send('["nor", "a", "request"]')
    wire.request(7, "tools/list")
    assert "result" in wire.answer(7)


def test_progress_only_with_a_token_increasing_and_never_after_the_answer(wire: WireClient) -> None:
    wire.initialize()
    wire.call(1, "validate_kernel", {"op": "rms_norm", "source": "#sleep 1.0\n#1"})
    wire.answer(1)
    assert not [line for line in wire.seen if b"notifications/progress" in line]
    before = len(wire.seen)
    wire.call(2, "validate_kernel", {"op": "rms_norm", "source": "#sleep 1.0\n#2"}, progressToken="t2")
    wire.answer(2)
    wire.request(3, "tools/list")
    wire.answer(3)
    messages = [json.loads(line) for line in wire.seen[before:]]
    progress = [message["params"] for message in messages if message.get("method") == "notifications/progress"]
    assert progress
    assert {item["progressToken"] for item in progress} == {"t2"}
    values = [item["progress"] for item in progress]
    assert values == sorted(set(values))
    answered = next(i for i, message in enumerate(messages) if message.get("id") == 2)
    assert not [m for m in messages[answered:] if m.get("method") == "notifications/progress"]


def test_cancelling_the_request_leaves_the_job_and_gets_no_answer(wire: WireClient) -> None:
    wire.initialize()
    source = "#sleep 1.0"
    wire.call(1, "validate_kernel", {"op": "rms_norm", "source": source})
    time.sleep(0.2)
    wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    wire.call(2, "validate_kernel", {"op": "rms_norm", "source": source})
    answer = wire.answer(2)["result"]["structuredContent"]
    assert answer["status"] == "completed"
    assert answer["attempt_id"] == "a-0001", "the first job went on and the second call joined it"
    answers = [json.loads(line) for line in wire.seen]
    assert not [m for m in answers if m.get("id") == 1 and "result" in m]


def _working_child(wire: WireClient, home: Path) -> int:
    wire.initialize()
    wire.call(1, "validate_kernel", {"op": "rms_norm", "source": "#child\n#sleep 200"})
    assert wait_for(lambda: (home / "child").exists() and (home / "child").read_text(encoding="utf-8"))
    child = int((home / "child").read_text(encoding="utf-8"))
    assert alive(child)
    return child


def _close_input(wire: WireClient) -> None:
    wire.process.stdin.close()  # type: ignore[union-attr]


def _interrupt_like_a_client(wire: WireClient) -> None:
    wire.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    if wire.process.poll() is None:
        wire.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    "end",
    [
        _close_input,
        _interrupt_like_a_client,
        lambda wire: wire.process.send_signal(signal.SIGTERM),
        lambda wire: wire.process.send_signal(signal.SIGINT),
        lambda wire: wire.process.send_signal(signal.SIGHUP),
    ],
    ids=["end of input", "SIGINT then SIGTERM", "SIGTERM", "SIGINT", "SIGHUP"],
)
def test_the_end_closes_the_harness_in_the_middle_of_a_job(
    wire: WireClient, home: Path, end: Callable[[WireClient], None]
) -> None:
    child = _working_child(wire, home)
    end(wire)
    assert wire.exit_code(timeout_s=5) == 0
    assert (home / "closed").exists()
    assert wait_for(lambda: not alive(child), 2)


def test_a_broken_output_ends_the_server_though_its_input_stays_open(home: Path) -> None:
    """Otherwise a thread that waits for input keeps a server alive that can never answer again."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.server.serve_fake", str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=scrubbed_environment(home),
        cwd=REPOSITORY,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        client = {"name": "wire", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        assert b"result" in process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n')
        process.stdin.flush()
        assert process.wait(10) == 0
        assert (home / "closed").exists()
    finally:
        process.kill()
        process.wait(10)


def test_the_server_ends_with_its_parent(home: Path, tmp_path: Path) -> None:
    """The parent is killed while another process still holds the input open."""
    pid_file = tmp_path / "pid"
    program = (
        "import subprocess, sys, time\n"
        f"command = [sys.executable, '-P', '-m', 'tests.server.serve_fake', {str(home)!r}]\n"
        "p = subprocess.Popen(command, stdin=0, stdout=1)\n"
        f"open({str(pid_file)!r}, 'w').write(str(p.pid))\n"
        "time.sleep(60)"
    )
    read_end, write_end = os.pipe()
    try:
        parent = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=scrubbed_environment(tmp_path),
            cwd=REPOSITORY,
        )
        assert wait_for(lambda: pid_file.exists() and pid_file.read_text(encoding="utf-8"))
        server = int(pid_file.read_text(encoding="utf-8"))
        assert wait_for(lambda: (home / "warmed").exists(), 20)
        assert alive(server)
        parent.kill()
        parent.wait(5)
        assert wait_for(lambda: not alive(server), 5)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_job_of_a_killed_server_reads_interrupted(home: Path) -> None:
    first = WireClient(home)
    first.initialize()
    first.call(1, "validate_kernel", {"op": "rms_norm", "source": "#sleep 100", "wait_s": 0.2})
    job_id = first.answer(1)["result"]["structuredContent"]["job_id"]
    first.process.kill()
    first.exit_code()
    second = WireClient(home)
    try:
        second.initialize()
        second.call(1, "get_job", {"job_id": job_id, "wait_s": 5})
        answer = second.answer(1)["result"]["structuredContent"]
        assert answer["status"] == "interrupted"
        assert "submit" in answer["next"]
    finally:
        second.kill()


def test_two_servers_share_one_home(home: Path) -> None:
    first, second = WireClient(home), WireClient(home)
    try:
        for wire in (first, second):
            wire.initialize()
        first.call(1, "validate_kernel", {"op": "rms_norm", "source": "#sleep 100", "wait_s": 0.2})
        job_id = first.answer(1)["result"]["structuredContent"]["job_id"]
        second.call(1, "get_job", {"job_id": job_id, "wait_s": 0})
        answer = second.answer(1)["result"]["structuredContent"]
        assert answer["status"] == "working"
        assert str(first.process.pid) in answer["doing"]
    finally:
        first.kill()
        second.kill()
