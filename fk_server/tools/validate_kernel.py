from __future__ import annotations

from typing import Annotated, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from fk_core.candidate_file import check_text
from fk_core.records.job import JobState, JobStatus
from fk_core.records.report import ValidateReport, ValidateRequest
from fk_server.services import Services
from fk_server.waiting import attend, check_wait, envelope

TITLE = "Validate a kernel"
ANNOTATIONS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)


async def validate_kernel(
    ctx: Context[Services],
    op: Annotated[str, Field(description="Operator name from list_ops, for example rms_norm")],
    source: Annotated[
        str, Field(description="Text of the candidate file. Give exactly one of source, path, attempt")
    ] = "",
    path: Annotated[str, Field(description="Or: a candidate file on the server's host, under its allowed roots")] = "",
    attempt: Annotated[str, Field(description="Or: the attempt_id whose source is to be validated again")] = "",
    cases: Annotated[
        str,
        Field(
            description="'default' (all cases, the default), 'quick' (at most five; on a CPU all), or glob patterns "
            "over case ids, comma-separated, for example '*Llama-3.1-8B*'"
        ),
    ] = "default",
    mode: Annotated[
        Literal["independent"], Field(description="'independent' (default): this file alone")
    ] = "independent",
    fresh: Annotated[
        bool, Field(description="true: run again even if this very submission is on record; default false")
    ] = False,
    allow: Annotated[
        list[str],
        Field(
            description="Production kernel libraries that the candidate may import, for example ['vllm']; default "
            "none. A name that is none is refused, with the list of those there are"
        ),
    ] = [],  # noqa: B006  never changed; the SDK publishes it as the default
    device: Annotated[
        str, Field(description="'auto' (default: a GPU if there is one), 'cpu', 'cuda', a GPU index or UUID")
    ] = "auto",
    wait_s: Annotated[
        float,
        Field(
            description="Wait at most this long for the verdict, 0 to 240 seconds, default 45; then ask "
            "again with get_job"
        ),
    ] = 45.0,
) -> Annotated[CallToolResult, JobStatus]:
    """Judge a candidate kernel: is it right, is it faster than production, would it deploy?

    The answer is an envelope. With status 'completed' its result is the verdict: outcome (PASSED, or what went wrong),
    blame, correct, winner, speed with a 95% interval, cases with the failing ones first (first wrong index, pattern),
    deploy flags, evidence, next_steps. With status 'queued' or 'working' call what `next` says. The identical
    submission is answered from the record within milliseconds.
    """
    services = ctx.request_context.lifespan_context
    check_wait(wait_s)
    if sum(map(bool, (source, path, attempt))) != 1:
        raise ToolError(
            "give exactly one of source (text of the file, not empty), path (a file on the server's host) and attempt"
        )
    harness = services.harness
    limit = harness.settings.limits.source_bytes

    def read() -> tuple[ValidateRequest, ValidateReport | None]:
        text = source
        if path:
            text = services.roots.read(path, limit)
        elif attempt:
            text = harness.journal.read(attempt)[0].source
        check_text(text, limit)
        request = ValidateRequest(
            op=op,
            source=text,
            path=path,
            cases=cases,
            mode=mode,
            fresh=fresh,
            allow=allow,
            device=device,
            client=_client(ctx),
        )
        return request, None if fresh else harness.cached_report(request)

    request, recorded = await services.call(read)
    if recorded is not None:
        attempt_id = recorded.attempt_id or recorded.identical_to
        return envelope(
            JobStatus(
                status=JobState.COMPLETED,
                job_id=attempt_id,
                attempt_id=attempt_id,
                progress=1.0,
                next="answered from the record; validate_kernel(fresh=true) runs it again; "
                f"fk://attempts/{attempt_id}/report is whole",
                result=recorded.model_dump(mode="json"),
            )
        )
    job_id = await services.call(services.jobs.submit, request)
    status = await attend(ctx, services, job_id, wait_s)
    return envelope(status, services.jobs.failure(job_id))


def _client(ctx: Context[Services]) -> str:
    params = ctx.session.client_params
    return f"{params.client_info.name} {params.client_info.version}"[:100] if params is not None else ""
