from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from fk_core.records.listing import OpsList
from fk_server.answers import answer
from fk_server.fitting import fit_list
from fk_server.services import Services

TITLE = "List operators"
ANNOTATIONS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


class OpsAnswer(OpsList):
    left_out: int = 0
    """Operators that did not fit: narrow the list with ``level``, ``model`` or ``query``."""


async def list_ops(
    ctx: Context[Services],
    level: Annotated[int, Field(ge=0, le=4, description="1 to 4 for one level; 0 (default) for all")] = 0,
    model: Annotated[str, Field(description="Only operators with cases of this model; part of a name is enough")] = "",
    query: Annotated[str, Field(description="Only operators whose name or summary holds this text")] = "",
) -> Annotated[CallToolResult, OpsAnswer]:
    """List the operators for which a kernel can be written and judged.

    For each: name (the op of the other tools), level, classes, models whose shapes it is judged on, number of cases
    on the device at hand, and the production baselines found and missing on this machine.
    """
    services = ctx.request_context.lifespan_context
    ops = await services.call(services.harness.list_ops, level=level, model=model, query=query)
    return answer(fit_list(ops.model_dump(mode="json"), "ops"))
