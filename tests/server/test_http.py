"""Streamable HTTP: hosts and origins, dropped connections, and an end that open streams can't hold up."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client

from fk_core.errors import RequestError
from fk_server.web import parse_address, security
from tests.server.fakes import report_of
from tests.server.wire_client import REPOSITORY, scrubbed_environment, wait_for


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
    except OSError:
        return False
    return True


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    number = _free_port()
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "tests.server.serve_fake",
            str(tmp_path / "home"),
            "--http",
            f"127.0.0.1:{number}",
        ],
        env=scrubbed_environment(tmp_path),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert wait_for(lambda: _answers(number), 20)
    (tmp_path / "pid").write_text(str(process.pid), encoding="utf-8")
    yield number
    process.kill()
    process.wait(10)


def _post(port: int, body: dict[str, object], **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    base = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request("POST", "/mcp", json.dumps(body), {**base, **headers})
    answer = connection.getresponse()
    status, data = answer.status, answer.read() if answer.status >= 300 else b""
    connection.close()
    return status, data


_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def test_foreign_hosts_and_origins_are_refused(port: int) -> None:
    assert _post(port, _INITIALIZE)[0] == 200
    assert _post(port, _INITIALIZE, Host="evil.example")[0] == 421
    assert _post(port, _INITIALIZE, Origin="http://evil.example")[0] == 403


def test_an_unknown_session_is_404(port: int) -> None:
    status, _ = _post(port, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, **{"Mcp-Session-Id": "gone"})
    assert status == 404


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_dropped_connection_leaves_the_job(port: int, mode: str) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    arguments = {"op": "rms_norm", "source": f"#sleep 1.5\n#{mode}"}
    async with Client(url, mode=mode) as client:
        with pytest.raises(Exception, match=r"(?i)timed? ?out"):
            await client.call_tool("validate_kernel", arguments, read_timeout_seconds=0.4)
    async with Client(url, mode=mode) as client:
        answer = report_of(await client.call_tool("validate_kernel", arguments))
        assert answer["status"] == "completed"
        assert answer["attempt_id"] == "a-0001"


@pytest.mark.anyio
async def test_sigterm_ends_the_server_in_spite_of_an_open_call(port: int, tmp_path: Path) -> None:
    import anyio

    async def call() -> None:
        try:
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "#sleep 100"})
        except Exception:  # noqa: BLE001  how the cut connection shows is the client's matter
            pass

    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.sleep(1.0)
        os.kill(pid, signal.SIGTERM)
        with anyio.fail_after(10):
            while not (tmp_path / "home" / "closed").exists() or _answers(port):
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


def test_addresses() -> None:
    assert parse_address("127.0.0.1:8000") == ("127.0.0.1", 8000)
    assert parse_address(":8000") == ("127.0.0.1", 8000)
    assert parse_address("[::1]:80") == ("::1", 80)
    for wrong in ("8000", "host:", "host:x", "host:70000", ""):
        with pytest.raises(RequestError):
            parse_address(wrong)


def _serve(place: Path, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "fk_server", "--http", address]
    environ = scrubbed_environment(place) | {"FK_HOME": str(place / "home"), "FK_LOCK_DIR": str(place / "locks")}
    return subprocess.Popen(
        command, env=environ, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def test_a_busy_port_is_an_error_and_not_announced(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        _, said = (process := _serve(tmp_path, f"127.0.0.1:{number}")).communicate(timeout=30)
    assert process.returncode == 2
    assert f"can't listen on 127.0.0.1:{number}: Address already in use" in said
    assert "FK server at" not in said
    assert "Traceback" not in said


def test_what_is_announced_answers_at_once(tmp_path: Path) -> None:
    """Also where the system chooses the port."""
    process = _serve(tmp_path, "127.0.0.1:0")
    try:
        assert process.stderr is not None
        announced = re.fullmatch(r"FK server at http://127\.0\.0\.1:(\d+)/mcp\n", process.stderr.readline())
        assert announced is not None
        assert _post(int(announced[1]), _INITIALIZE)[0] == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_beyond_loopback_the_names_must_be_given() -> None:
    assert security("127.0.0.1", {}) is None
    with pytest.raises(RequestError, match="no authentication"):
        security("0.0.0.0", {})
    allowed = security("0.0.0.0", {"FK_HTTP_ALLOWED_HOSTS": "box:8000"})
    assert allowed is not None
    assert allowed.allowed_hosts == ["box:8000"]
