from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from fk_core.records.job import JobStatus
from fk_server.services import Services
from fk_server.waiting import attend, envelope

TITLE = "Cancel a job"
# A cancelled job can be submitted again: nothing is destroyed.
ANNOTATIONS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_WAIT_S = 3.0


async def cancel_job(
    ctx: Context[Services],
    job_id: Annotated[str, Field(description="job_id from validate_kernel")],
) -> Annotated[CallToolResult, JobStatus]:
    """Stop a job and all its processes. A job that has already ended stays as it is.

    Answers the envelope with status 'cancelled'; 'working' where its processes take longer than 3 seconds to stop.
    A job of another server process can't be stopped from here: that is an error, which names the process.
    """
    services = ctx.request_context.lifespan_context
    await services.call(services.jobs.cancel, job_id)
    return envelope(await attend(ctx, services, job_id, _WAIT_S))
