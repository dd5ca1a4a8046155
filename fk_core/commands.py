"""The commands of ``fk``: one verb of the harness each. Answers go to stdout, everything else to stderr.

Exit codes: 0 answered and good; 1 the candidate failed; 2 the request was wrong; 3 harness or machine fault.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fk_core import __version__, show
from fk_core import settings as fk_settings
from fk_core.candidate_file import absolute, check_new_file, read_candidate
from fk_core.errors import FkError
from fk_core.plain import clean_text, document, failure
from fk_core.records.job import UNFINISHED
from fk_core.records.report import Outcome, ValidateReport, ValidateRequest

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Judge GPU kernels against what production frameworks ship.",
)
# Into a pipe or a file nothing is cut at the width of a terminal that is not there.
_out = Console(soft_wrap=False, width=None if sys.stdout.isatty() else 200)
_err = Console(stderr=True)
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]


def make_harness(settings: fk_settings.Settings) -> Any:
    """The harness; imported here so that ``--help`` and wrong usage answer at once."""
    from fk_core.harness import Harness

    return Harness(settings)


@contextlib.contextmanager
def _harness() -> Iterator[Any]:
    harness = make_harness(fk_settings.load())
    try:
        yield harness
    finally:
        harness.close()


def _answer(record: BaseModel, as_json: bool, table: Callable[[Any], Any]) -> None:
    if as_json:
        sys.stdout.write(document(record) + "\n")
    else:
        # An id that is wider than the terminal goes on in the next line there, and can be copied.
        _out.print(table(record), crop=False)


@app.callback(invoke_without_command=True)
def fk(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which versions these are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    if version:
        found = {"fk": __version__, "torch": _version("torch"), "triton": _version("triton")}
        found["python"] = platform.python_version()
        said = ", ".join(f"{name} {version or '(not installed)'}" for name, version in found.items())
        sys.stdout.write((document(found) if as_json else said) + "\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise _USAGE_ERROR("no command was given")
    if as_json:
        raise _USAGE_ERROR("--json goes behind the command")


def _version(distribution: str) -> str | None:
    """Of an installed library, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@app.command()
def serve(
    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP instead.")] = "",
) -> int:
    """Serve MCP over stdin and stdout, or over HTTP."""
    from fk_core.cli import become

    become("fk_server", ["--http", http] if http else [])
    return 0


@app.command()
def demo(as_json: Json = False) -> int:
    """Judge three kernels through a real MCP client: an honest one, a wrong one and a cheat."""
    from fk_core.cli import become

    become("fk_server.demo", ["--json"] if as_json else [])
    return 0


@app.command()
def ops(
    level: Annotated[int, typer.Option(min=0, max=4, help="1 to 4; 0 for all.")] = 0,
    model: Annotated[str, typer.Option(help="Only operators with cases of this model.")] = "",
    query: Annotated[str, typer.Option(help="Only operators whose name or summary holds this text.")] = "",
    as_json: Json = False,
) -> int:
    """List the operators."""
    with _harness() as harness:
        _answer(harness.list_ops(level=level, model=model, query=query), as_json, show.ops)
    return 0


@app.command()
def stub(
    op: Annotated[str, typer.Argument(help="Operator name, see `fk ops`.")],
    dtype: Annotated[str, typer.Option(help="Only cases of this dtype.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Write the stub to this new file.")] = None,
    as_json: Json = False,
) -> int:
    """Print what exactly to write for one operator. Into a pipe or a file goes the Python source alone."""
    if out is not None:
        out = absolute(out)
        check_new_file(out)
    with _harness() as harness:
        made = harness.create_stub(op, dtype=dtype, out_path="" if out is None else str(out))
    if as_json or sys.stdout.isatty():
        _answer(made, as_json, show.stub)
    else:
        sys.stdout.write(made.source)
        _err.print(show.stub_notes(made), crop=False)
    return 0


@app.command()
def validate(
    op: Annotated[str, typer.Argument(help="Operator name, see `fk ops`.")],
    file: Annotated[Path, typer.Argument(help="The candidate file.")],
    cases: Annotated[
        str, typer.Option(help="default (all), quick (at most five; on a CPU all), or glob patterns over case ids.")
    ] = "default",
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again even if this submission is on record.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Production kernel library, such as vllm, that the candidate may import; more than once."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, a GPU index or UUID; default: FK_DEVICE.")] = "",
    as_json: Json = False,
) -> int:
    """Judge a candidate: is it right, is it faster, would it deploy?"""
    settings = fk_settings.load()
    source = read_candidate(file, settings.limits.source_bytes)
    request = ValidateRequest(
        op=op,
        source=source,
        path=str(file),
        cases=cases,
        fresh=fresh,
        allow=allow or [],
        device=device or settings.device,
        client="fk validate",
    )
    cancel = threading.Event()
    with _harness() as harness, _cancelled_by_signals(cancel), _progress(quiet=as_json) as progress:
        recorded = None if fresh else harness.cached_report(request)
        report = recorded or harness.validate(request, progress=progress, cancel=cancel)
    _answer(report, as_json, show.report)
    return exit_code(report)


def exit_code(report: ValidateReport) -> int:
    if report.outcome is Outcome.PASSED:
        return 0
    return 1 if report.blame == "candidate" else 3


@app.command()
def gpus(as_json: Json = False) -> int:
    """Show the devices, who holds them and who waits."""
    with _harness() as harness:
        _answer(harness.gpu_status(), as_json, show.gpus)
    return 0


@app.command()
def doctor(as_json: Json = False) -> int:
    """Say what works on this machine, what to install for the rest, and how exact its timing is."""
    with _harness() as harness, _progress(quiet=as_json) as progress:
        found = harness.doctor(progress)
    _answer(found, as_json, show.doctor)
    return 3 if any(check.state == "broken" for check in found.checks) else 0


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, float | None], None]]:
    """A bar on stderr for people; a line for each step where stderr is no terminal; nothing if ``quiet``."""
    if quiet:
        yield lambda doing, share: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda doing, share: bar.update(
            task,
            description=clean_text(doing),
            total=None if share is None else 1.0,
            completed=min(UNFINISHED, share or 0.0),
        )


@contextlib.contextmanager
def _cancelled_by_signals(cancel: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM stops the work in order, the next one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        if cancel.is_set():
            os._exit(3)
        cancel.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code; with ``--json`` also every failure is one document on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s %(levelname)s %(message)s")
    as_json = any(argument == "--json" or argument.startswith("--json=") for argument in arguments)
    try:
        code = app(args=arguments, prog_name="fk", standalone_mode=False)
    except FkError as error:
        return _failed(as_json, error.exit_code, error.code, error.message, error.hint)
    except (typer.Abort, KeyboardInterrupt):
        return _failed(as_json, 3, "cancelled", "interrupted", "")
    except _USAGE_ERROR as error:
        say, context = getattr(error, "format_message", None), getattr(error, "ctx", None)
        hint = f"See `{'fk' if context is None else context.command_path} --help`"
        return _failed(as_json, 2, "bad_request", (say() if say else str(error)) or "no command", hint)
    except Exception as error:  # noqa: BLE001  the last resort: it is shown, with its traceback and exit code 3
        traceback.print_exc()
        return _failed(as_json, 3, "harness_fault", f"{type(error).__name__}: {error}", "This is a fault of FK")
    if code == _INTERRUPTED:
        return _failed(as_json, 3, "cancelled", "interrupted", "")
    return code if isinstance(code, int) else 0


_INTERRUPTED = 130
"""What typer makes of Ctrl-C."""


def _failed(as_json: bool, code: int, kind: str, message: str, hint: str) -> int:
    if as_json:
        sys.stdout.write(failure(kind, message, hint) + "\n")
    sys.stderr.write(f"fk: {clean_text(message)}\n" + (f"    {clean_text(hint)}\n" if hint else ""))
    return code
