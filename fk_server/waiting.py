"""Waiting for a job inside one request: progress while it lasts, and an envelope before the client gives up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult

from fk_core.errors import FkError, RequestError
from fk_core.jobs import ENDED, Jobs
from fk_core.plain import clean_text
from fk_core.records.job import JobStatus
from fk_server.answers import answer
from fk_server.faults import fault_text, tool_error
from fk_server.fitting import fit_envelope
from fk_server.services import Services

MAX_WAIT_S = 240.0
HEARTBEAT_S = 10.0
"""Progress is reported at least this often: the strictest client gives up after half a minute of silence."""
_FOREIGN_POLL_S = 1.0
"""How often a job of another process is looked up: nobody tells this one when it ends."""
_QUIET_S = 0.3
"""And at most this often, however fast the job changes."""


async def attend(ctx: Context[Services], services: Services, job_id: str, wait_s: float) -> JobStatus:
    """Status of a job when it ends, or after ``wait_s`` seconds; progress goes to the client meanwhile.

    The job does not depend on this request: when the client cancels or disconnects, only the waiting ends.
    """
    jobs = services.jobs
    loop = asyncio.get_running_loop()
    changed = anyio.Event()
    deadline = time.monotonic() + wait_s
    reports = 0
    longest_s = HEARTBEAT_S if jobs.holds(job_id) else _FOREIGN_POLL_S

    def wake() -> None:
        changed.set()

    with jobs.watch(job_id, _from_thread(loop, wake)):
        status = await services.call(jobs.status, job_id)
        while status.status not in ENDED and (left := deadline - time.monotonic()) > 0:
            with anyio.move_on_after(min(longest_s, left)):
                await changed.wait()
            changed = anyio.Event()
            status = await services.call(jobs.status, job_id)
            if status.status in ENDED:
                break
            reports += 1
            await ctx.report_progress(reports, None, _line(status))
            with anyio.move_on_after(min(_QUIET_S, max(0.0, deadline - time.monotonic()))):
                await _ended(jobs, job_id, loop)
            status = await services.call(jobs.status, job_id)
    return status


async def _ended(jobs: Jobs, job_id: str, loop: asyncio.AbstractEventLoop) -> None:
    """Return when the job has ended; other changes don't count."""
    ended = anyio.Event()

    def look() -> None:
        if jobs.has_ended(job_id):
            ended.set()

    with jobs.watch(job_id, _from_thread(loop, look)):
        look()
        await ended.wait()


def _from_thread(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> Callable[[], None]:
    def schedule() -> None:
        # The loop may be closed already while a job still ends.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(act)

    return schedule


def _line(status: JobStatus) -> str:
    where = f" (number {status.queue_position} in the queue)" if status.queue_position else ""
    share = f", {status.progress:.0%}" if status.progress is not None else ""
    return clean_text(f"{status.doing or status.status.value}{where}{share}, {status.elapsed_s:.0f} s")[:300]


def envelope(status: JobStatus, failure: FkError | None = None) -> CallToolResult:
    """The answer of every tool that can be long. A request that was wrong is an error, not a failed job."""
    if isinstance(failure, RequestError):
        raise tool_error(failure)
    data = status.model_dump(mode="json")
    if failure is not None:
        data["error"] = fault_text(failure)
    return answer(fit_envelope(data))


def check_wait(wait_s: float) -> float:
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise ToolError(f"wait_s must be 0 to {MAX_WAIT_S:.0f} seconds, got {wait_s:g}; ask again later with get_job")
    return wait_s
