"""What a model reads when a tool cannot answer: every error of ``fk_core.errors`` with what to do about it."""

from __future__ import annotations

from mcp.server.mcpserver.exceptions import ToolError

from fk_core import errors
from fk_core.errors import FkError
from fk_core.plain import clean_text
from fk_server.wording import in_tools

ERROR_CHARACTERS = 4000

# An error may be read behind any tool: an argument is named with the one that has it.
ADVICE: dict[type[FkError], str] = {
    errors.FkError: "Read the server's log.",
    errors.RequestError: "Correct the arguments and call again.",
    errors.UnknownTask: "Call again with the name of an operator.",
    errors.UnknownCase: "Call create_stub to see the case ids; validate_kernel(cases='default') takes all.",
    errors.UnknownDevice: "Call gpu_status to see the devices. validate_kernel(device=...) says which one; without it "
    "FK_DEVICE of the server does.",
    errors.BadSource: "validate_kernel(source=...) takes the whole candidate file as text.",
    errors.BadPath: "FK_ALLOWED_ROOTS of the server adds directories; validate_kernel(source=...) takes a candidate's "
    "text without a file.",
    errors.UnknownAttempt: "Use an attempt_id that validate_kernel gave.",
    errors.UnknownJob: "Use a job_id that validate_kernel gave.",
    errors.ForeignJob: "Call get_job to see how it stands.",
    errors.HarnessError: "This is not the candidate's fault. Call again once; if it comes back, run `fk doctor`.",
    errors.ZygoteDied: "This is not the candidate's fault. Call again: it is started anew.",
    errors.JudgeDied: "This is not the candidate's fault. Call again: it is started anew.",
    errors.TaskBroken: "This is not the candidate's fault. The task file must be mended.",
    errors.JournalError: "This is not the candidate's fault. Check space and rights under FK_HOME.",
    errors.MachineError: "This is not the candidate's fault. Call gpu_status.",
    errors.NoDevice: "Call gpu_status; validate_kernel(device='cpu') needs no GPU. A client that scrubs the "
    "environment must pass on CUDA_VISIBLE_DEVICES, CUDA_HOME and LD_LIBRARY_PATH (Codex: env_vars).",
    errors.LeaseTimeout: "Call gpu_status to see who holds the device, and try again later.",
    errors.DeviceBroken: "This is not the candidate's fault. Call gpu_status.",
    errors.Cancelled: "Submit again if it is still wanted.",
}


def advice(error: FkError) -> str:
    return next(ADVICE[cls] for cls in type(error).__mro__ if cls in ADVICE)


def fault_text(error: FkError) -> str:
    """Code, what was asked and found, and what to do, in at most ``ERROR_CHARACTERS`` characters."""
    tail = f" {advice(error)}"
    text = in_tools(clean_text(f"{error.code}: {error}".rstrip(".") + "."))
    if len(text) + len(tail) > ERROR_CHARACTERS:
        text = text[: ERROR_CHARACTERS - len(tail) - 2] + " …"
    return text + tail


def tool_error(error: FkError) -> ToolError:
    return ToolError(fault_text(error))
