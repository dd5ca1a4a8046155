from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from fk_core.records.job import JobStatus
from fk_server.services import Services
from fk_server.waiting import attend, check_wait, envelope

TITLE = "Wait for a job"
ANNOTATIONS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


async def get_job(
    ctx: Context[Services],
    job_id: Annotated[str, Field(description="job_id or attempt_id from validate_kernel")],
    wait_s: Annotated[
        float, Field(description="Wait at most this long for the end, 0 to 240 seconds, default 45; 0 only looks")
    ] = 45.0,
) -> Annotated[CallToolResult, JobStatus]:
    """Go on waiting for a job, or look up a finished one; also after the server was restarted.

    Answers the same envelope as validate_kernel. 'interrupted' means that the server stopped before the job had ended:
    submit the kernel again.
    """
    services = ctx.request_context.lifespan_context
    check_wait(wait_s)
    await services.call(services.jobs.status, job_id)  # an unknown id ends here, as a readable error
    status = await attend(ctx, services, job_id, wait_s)
    return envelope(status, services.jobs.failure(job_id))
