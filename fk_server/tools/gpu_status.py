from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ToolAnnotations

from fk_core.records.device import GpuStatus
from fk_server.answers import answer
from fk_server.fitting import fit_list
from fk_server.services import Services

TITLE = "Device status"
ANNOTATIONS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


class GpuAnswer(GpuStatus):
    left_out: int = 0
    """Devices that did not fit."""


async def gpu_status(ctx: Context[Services]) -> Annotated[CallToolResult, GpuAnswer]:
    """Which devices there are, who holds or waits for each, and processes that use a GPU without a lease."""
    services = ctx.request_context.lifespan_context
    status = await services.call(services.harness.gpu_status)
    return answer(fit_list(status.model_dump(mode="json"), "devices"))
