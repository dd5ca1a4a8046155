"""Each tool over an in-memory client, in both protocol eras."""

from __future__ import annotations

import json
import time
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.types import TextContent

from fk_core.errors import BadSource, HarnessError, LeaseTimeout
from fk_core.records.report import ValidateRequest
from fk_server.answers import ANSWER_CHARACTERS
from tests.server.fakes import OPS, FakeAttempt, FakeHarness, huge, report_of

pytestmark = pytest.mark.anyio

TOOLS = {"list_ops", "create_stub", "validate_kernel", "get_job", "cancel_job", "gpu_status"}


def text_of(result: object) -> str:
    blocks = result.content  # type: ignore[attr-defined]
    assert all(isinstance(block, TextContent) for block in blocks)
    return "".join(block.text for block in blocks)


async def test_the_tools_are_those_of_the_contract(client: Client) -> None:
    assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS


async def test_list_ops(client: Client) -> None:
    answer = report_of(await client.call_tool("list_ops", {}))
    assert [op["name"] for op in answer["ops"]] == list(OPS)
    narrowed = report_of(await client.call_tool("list_ops", {"query": "soft"}))
    assert [op["name"] for op in narrowed["ops"]] == ["softmax"]


async def test_gpu_status(client: Client) -> None:
    answer = report_of(await client.call_tool("gpu_status", {}))
    assert answer["devices"][0]["device"]["uuid"] == "cpu"


async def test_create_stub_writes_only_new_files_under_the_roots(client: Client, root: Path, tmp_path: Path) -> None:
    inside = root / "stub.py"
    answer = report_of(await client.call_tool("create_stub", {"op": "softmax", "out_path": str(inside)}))
    assert inside.read_text(encoding="utf-8") == answer["source"]
    assert answer["written_to"] == str(inside)
    again = await client.call_tool("create_stub", {"op": "softmax", "out_path": "stub.py"})
    assert again.is_error
    assert "exists already" in text_of(again)
    outside = await client.call_tool("create_stub", {"op": "softmax", "out_path": str(tmp_path / "elsewhere.py")})
    assert outside.is_error
    assert "allowed roots" in text_of(outside)
    assert not (tmp_path / "elsewhere.py").exists()


async def test_validate_answers_the_verdict(client: Client, harness: FakeHarness) -> None:
    result = await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x = 1"})
    answer = report_of(result)
    assert answer["status"] == "completed"
    assert answer["result"]["outcome"] == "PASSED"
    assert answer["attempt_id"] == answer["result"]["attempt_id"]
    assert harness.started == 1


async def test_an_identical_submission_is_answered_from_the_record(client: Client, harness: FakeHarness) -> None:
    first = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x = 1"}))
    second = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x = 1"}))
    assert harness.started == 1
    assert second["status"] == "completed"
    assert second["progress"] == first["progress"] == 1.0
    assert second["result"]["identical_to"] == first["attempt_id"]
    marked = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "\ufeffx = 1"}))
    assert marked["result"]["identical_to"] == first["attempt_id"]
    looked_up = report_of(await client.call_tool("get_job", {"job_id": second["job_id"], "wait_s": 0}))
    assert looked_up["result"]["outcome"] == "PASSED"
    await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x = 1", "fresh": True})
    assert harness.started == 2


async def test_source_path_and_attempt(client: Client, harness: FakeHarness, root: Path) -> None:
    (root / "mine.py").write_text("\ufeffx = 2\n", encoding="utf-8")
    by_path = report_of(await client.call_tool("validate_kernel", {"op": "softmax", "path": "mine.py"}))
    assert harness.journal.attempts[by_path["attempt_id"]][0].source == "x = 2\n"
    by_attempt = report_of(
        await client.call_tool("validate_kernel", {"op": "rms_norm", "attempt": by_path["attempt_id"], "fresh": True})
    )
    assert harness.journal.attempts[by_attempt["attempt_id"]][0].source == "x = 2\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "exactly one of source"),
        ({"source": "x", "path": "y"}, "exactly one of source"),
        ({"path": "absent.py"}, "No such file"),
        ({"path": "/etc/passwd"}, "allowed roots"),
        ({"path": "../../../../etc/passwd"}, "allowed roots"),
        ({"path": "link.py"}, "allowed roots"),
        ({"path": "."}, "not a regular file"),
        ({"path": "pipe"}, "not a regular file"),
        ({"path": "latin.py"}, "not UTF-8"),
        ({"path": "big.py"}, "larger than"),
        ({"path": "a\0b"}, "NUL"),
        ({"source": "x" * (2 << 20)}, "at most"),
        ({"attempt": "a-none"}, "no attempt"),
        ({"source": "x", "wait_s": 241}, "0 to 240"),
        ({"source": "x", "wait_s": -1}, "0 to 240"),
        ({"source": "x", "mode": "composed"}, "independent"),
    ],
)
async def test_wrong_requests_are_taught(
    client: Client, harness: FakeHarness, root: Path, arguments: dict[str, object], told: str
) -> None:
    import os

    (root / "link.py").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    (root / "latin.py").write_bytes(b"# caf\xe9\n")
    (root / "big.py").write_bytes(b"#" * ((1 << 20) + 1))
    result = await client.call_tool("validate_kernel", {"op": "rms_norm", **arguments})
    assert result.is_error
    assert told in text_of(result)
    assert len(text_of(result)) < 5000
    assert harness.started == 0


async def test_unknown_operator_is_taught_and_starts_nothing(client: Client, harness: FakeHarness) -> None:
    result = await client.call_tool("validate_kernel", {"op": "rmsnorm", "source": "x"})
    assert result.is_error
    assert "Nearest: rms_norm" in text_of(result)
    assert text_of(result).count("list_ops") == 1
    assert "`fk" not in text_of(result)
    assert harness.started == 0


async def test_unknown_arguments_are_refused_by_name(client: Client, harness: FakeHarness) -> None:
    result = await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x", "wait": 3})
    assert result.is_error
    assert "'wait'" in text_of(result)
    assert "wait_s" in text_of(result)
    assert harness.started == 0
    unknown = await client.call_tool("validate_kernal", {"op": "rms_norm"})
    assert unknown.is_error
    assert "validate_kernel" in text_of(unknown)


@pytest.mark.parametrize("nothing", [None, "null"])
async def test_null_means_left_out(client: Client, nothing: object) -> None:
    optional = ("path", "attempt", "cases", "mode", "fresh", "allow", "device", "wait_s")
    arguments = {"op": "rms_norm", "source": "x", **dict.fromkeys(optional, nothing)}
    assert report_of(await client.call_tool("validate_kernel", arguments))["status"] == "completed"
    assert "ops" in report_of(await client.call_tool("list_ops", dict.fromkeys(("level", "model", "query"), nothing)))


async def test_text_and_structured_answer_are_the_same_and_strict_json(client: Client, harness: FakeHarness) -> None:
    harness.make_report = huge
    calls = [
        ("list_ops", {}),
        ("create_stub", {"op": "softmax"}),
        ("gpu_status", {}),
        ("validate_kernel", {"op": "rms_norm", "source": "x"}),
        ("get_job", {"job_id": "a-0001"}),
        ("cancel_job", {"job_id": "a-0001"}),
    ]
    for name, arguments in calls:
        result = await client.call_tool(name, arguments)
        text = text_of(result)

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        assert json.loads(text, parse_constant=refuse) == result.structured_content, name
        assert len(text) <= ANSWER_CHARACTERS, name
        text.encode("utf-8")
        assert "\x1b" not in text
        assert "\\u001b" not in text


async def test_a_huge_report_keeps_the_failing_case_and_points_to_the_rest(
    client: Client, harness: FakeHarness
) -> None:
    harness.make_report = huge
    answer = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"}))
    result = answer["result"]
    assert result["cases"][0]["outcome"] == "WRONG_VALUES"
    assert result["cases"][0]["first_mismatch"]["pattern"] == "last rows"
    assert result["cases_total"] == 201
    assert result["cases_left_out"] == 201 - len(result["cases"]) > 0
    assert result["cases_by_outcome"] == {"WRONG_VALUES": 1, "PASSED": 200}
    uri = f"fk://attempts/{answer['attempt_id']}/report"
    assert uri in result["cut"]
    whole = json.loads((await client.read_resource(uri)).contents[0].text)  # type: ignore[union-attr]
    assert len(whole["cases"]) == 201
    assert whole["cases"][-1]["max_abs_error"] is None


async def test_a_long_job_gives_a_handle_and_progress(client: Client, harness: FakeHarness) -> None:
    seen: list[tuple[float, str | None]] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        seen.append((value, message))

    arguments = {"op": "rms_norm", "source": "#sleep 1.5", "wait_s": 0.7}
    working = report_of(await client.call_tool("validate_kernel", arguments, progress_callback=progress))
    assert working["status"] == "working"
    assert working["result"] is None
    assert working["job_id"] in working["next"]
    assert seen
    values = [value for value, _ in seen]
    assert values == sorted(set(values))
    assert any("timing" in (message or "") for _, message in seen)
    done = report_of(await client.call_tool("get_job", {"job_id": working["job_id"]}))
    assert done["status"] == "completed"
    assert done["job_id"] == working["job_id"]


async def test_waiting_ends_soon_after_the_job(client: Client) -> None:
    start = time.monotonic()
    done = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "#sleep 0.5"}))
    # Far below the heartbeat: the waiter is woken by the job itself.
    assert time.monotonic() - start < 8
    assert done["status"] == "completed"


async def test_the_same_submission_joins_the_running_job(client: Client, harness: FakeHarness) -> None:
    arguments = {"op": "rms_norm", "source": "#sleep 1.0", "wait_s": 0.1}
    first = report_of(await client.call_tool("validate_kernel", arguments))
    second = report_of(await client.call_tool("validate_kernel", arguments))
    assert first["job_id"] == second["job_id"]
    assert harness.started == 1


async def test_cancel_job_stops_the_work(client: Client, harness: FakeHarness) -> None:
    arguments = {"op": "rms_norm", "source": "#sleep 60", "wait_s": 0.1}
    job = report_of(await client.call_tool("validate_kernel", arguments))
    cancelled = report_of(await client.call_tool("cancel_job", {"job_id": job["job_id"]}))
    assert cancelled["status"] == "cancelled"
    assert harness.stopped == 1
    again = report_of(await client.call_tool("validate_kernel", arguments))
    assert again["job_id"] != job["job_id"]
    await client.call_tool("cancel_job", {"job_id": again["job_id"]})


async def test_cancel_job_says_at_once_that_another_process_has_the_job(client: Client, harness: FakeHarness) -> None:
    harness.journal.attempts["a-80"] = (ValidateRequest(op="rms_norm", source="x"), None)
    harness.journal.lines["a-80"] = FakeAttempt(running=True, pid=4711)
    began = time.monotonic()
    result = await client.call_tool("cancel_job", {"job_id": "a-80"})
    assert time.monotonic() - began < 2
    assert result.is_error
    for said in ("foreign_job", "pid 4711", "in the session that submitted it", "get_job"):
        assert said in text_of(result)


async def test_a_client_that_gives_up_does_not_stop_the_job(client: Client, harness: FakeHarness) -> None:
    with pytest.raises(Exception, match=r"(?i)timed? ?out"):
        await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "#sleep 1.0"}, read_timeout_seconds=0.3)
    assert harness.stopped == 0
    done = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "#sleep 1.0"}))
    assert done["status"] == "completed"
    assert harness.started == 1


async def test_tools_list_answers_while_a_verb_blocks(client: Client, harness: FakeHarness) -> None:
    def slow(*_: object, **__: object) -> object:
        time.sleep(1.5)
        return None

    harness.cached_report = slow  # type: ignore[method-assign]
    finished: list[str] = []

    async def validate() -> None:
        await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"})
        finished.append("validate")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(validate)
        await anyio.sleep(0.2)
        await client.call_tool("gpu_status", {})
        finished.append("status")
    assert finished == ["status", "validate"]


@pytest.mark.parametrize("error", [RuntimeError("boom /secret/path"), SystemExit(3), KeyboardInterrupt()])
async def test_a_crash_in_a_job_is_answered_and_the_server_lives(
    client: Client, harness: FakeHarness, error: BaseException
) -> None:
    harness.raises["validate"] = error
    answer = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"}))
    assert answer["status"] == "failed"
    assert type(error).__name__ in answer["error"]
    assert "not the candidate's fault" in answer["error"]
    harness.raises.clear()
    assert (
        report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "y"}))["status"] == "completed"
    )


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), RuntimeError("boom")])
async def test_a_crash_in_a_short_verb_is_answered_and_the_server_lives(
    client: Client, harness: FakeHarness, error: BaseException
) -> None:
    harness.raises["gpu_status"] = error
    result = await client.call_tool("gpu_status", {})
    assert result.is_error
    harness.raises.clear()
    assert not (await client.call_tool("gpu_status", {})).is_error


async def test_faults_of_harness_and_machine_are_envelopes_that_say_so(client: Client, harness: FakeHarness) -> None:
    harness.raises["validate"] = LeaseTimeout("GPU 0 is held by pid 7", hint="Wait")
    answer = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"}))
    assert answer["status"] == "failed"
    assert "no_gpu_in_time" in answer["error"]
    assert "pid 7" in answer["error"]
    assert "gpu_status" in answer["error"]
    harness.raises["validate"] = BadSource("half a file")
    result = await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "y"})
    assert result.is_error
    assert "half a file" in text_of(result)


async def test_error_texts_are_bounded_and_clean(client: Client, harness: FakeHarness) -> None:
    harness.raises["gpu_status"] = HarnessError("\x1b[31m\ud800" + "x" * 100_000)
    result = await client.call_tool("gpu_status", {})
    assert result.is_error
    assert len(text_of(result)) < 5000
    assert "\x1b" not in text_of(result)
    text_of(result).encode("utf-8")


async def test_unknown_job_names_the_known(client: Client) -> None:
    done = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"}))
    for tool in ("get_job", "cancel_job"):
        result = await client.call_tool(tool, {"job_id": "job-nope"})
        assert result.is_error
        assert done["job_id"] in text_of(result)


async def test_resources(client: Client) -> None:
    done = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x = 1"}))
    templates = {item.uri_template for item in (await client.list_resource_templates()).resource_templates}
    assert "fk://attempts/{attempt_id}/report" in templates
    source = await client.read_resource(f"fk://attempts/{done['attempt_id']}/source")
    assert source.contents[0].text == "x = 1"  # type: ignore[union-attr]
    listing = json.loads((await client.read_resource("fk://ops")).contents[0].text)  # type: ignore[union-attr]
    assert [op["name"] for op in listing["ops"]] == list(OPS)
    with pytest.raises(Exception, match="no attempt"):
        await client.read_resource("fk://attempts/a-none/report")
    with pytest.raises(Exception, match="no operator"):
        await client.read_resource("fk://ops/none/stub")


async def test_prompts(client: Client) -> None:
    prompts = (await client.list_prompts()).prompts
    assert "optimize" in [prompt.name for prompt in prompts]
    got = await client.get_prompt("optimize", {"op": "softmax"})
    text = got.messages[0].content.text  # type: ignore[union-attr]
    assert "`softmax`" in text
    assert "{op}" not in text


async def test_a_broken_runner_does_not_end_the_server(client: Client, harness: FakeHarness) -> None:
    harness.make_report = lambda request, attempt_id: None  # type: ignore[assignment,return-value]
    answer = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"}))
    assert answer["status"] == "failed"
    assert not (await client.call_tool("list_ops", {})).is_error


async def test_many_calls_cancelled_at_random_leave_the_server_answering(client: Client, harness: FakeHarness) -> None:
    import random

    draw = random.Random(7)
    for turn in range(40):
        with anyio.move_on_after(draw.uniform(0.0, 0.03)):
            await client.call_tool("validate_kernel", {"op": "rms_norm", "source": f"#sleep 0.02\n# {turn}"})
    assert not (await client.call_tool("list_ops", {})).is_error
    last = report_of(await client.call_tool("validate_kernel", {"op": "rms_norm", "source": "x"}))
    assert last["status"] == "completed"
