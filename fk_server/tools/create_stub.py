from __future__ import annotations

from typing import Annotated, Literal

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from fk_core.records.listing import Stub
from fk_server.answers import answer
from fk_server.fitting import fit_list
from fk_server.services import Services

TITLE = "Create a candidate stub"
ANNOTATIONS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


class StubAnswer(Stub):
    left_out: int = 0
    """Cases that did not fit; ``cases_total`` counts all."""


async def create_stub(
    ctx: Context[Services],
    op: Annotated[str, Field(description="Operator name from list_ops, for example rms_norm")],
    dtype: Annotated[
        Literal["", "float32", "bfloat16", "float16"],
        Field(description="Only cases of this dtype: float32, bfloat16 or float16; empty (default) for all"),
    ] = "",
    out_path: Annotated[
        str,
        Field(description="Also write the stub to this new file under the server's allowed roots; default: don't"),
    ] = "",
) -> Annotated[CallToolResult, StubAnswer]:
    """Start here: exactly what to write for one operator.

    Gives the source of a stub with the class names and signatures that the cases construct and call, the contract
    (which arguments may or must be overwritten, what outputs may alias), the real cases with call counts and, where
    known, the time to beat and the roofline floor, and the tolerance. Fill it in and pass it to validate_kernel.
    An existing file is never overwritten.
    """
    services = ctx.request_context.lifespan_context

    def create() -> Stub:
        target = str(services.roots.new_file(out_path)) if out_path else ""
        return services.harness.create_stub(op, dtype=dtype, out_path=target)

    stub = await services.call(create)
    return answer(fit_list(stub.model_dump(mode="json"), "cases"))
