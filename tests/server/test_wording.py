"""Over MCP the tools are named, on the command line the commands; the texts are the same."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import fk_core
import fk_server
from fk_core import commands, stubs
from fk_core.catalog import Catalog
from fk_core.conclude import conclude
from fk_core.errors import FkError, UnknownTask
from fk_core.fault import CandidateFault
from fk_core.hearing import Hearing
from fk_core.leases.devices import cpu_device
from fk_core.records.report import Outcome, ValidateRequest
from fk_core.settings import Settings
from fk_server.app import build_server
from fk_server.faults import ADVICE, fault_text
from fk_server.wording import in_tools
from tests.server.fakes import FakeHarness, settings_in

TOOLS = ("list_ops", "create_stub", "validate_kernel", "gpu_status", "get_job", "cancel_job")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("`fk ops` lists all", "list_ops lists all"),
        ("see `fk stub softmax`, or `fk stub OP`", "see create_stub(op='softmax'), or create_stub"),
        ("`fk validate softmax FILE`", "validate_kernel(op='softmax', source=...)"),
        ("`fk gpus`", "gpu_status"),
        ("run `fk doctor`", "run `fk doctor`"),
        ("`fk validate` with `--fresh`", "validate_kernel with fresh=true"),
        ("`--device cpu` of `fk validate`", "device='cpu' of validate_kernel"),
        ("leave out `--dtype` of `fk stub`, or `--out`", "leave out dtype of create_stub, or out_path"),
        ("`--bogus`", "`--bogus`"),
        ([{"a": "`fk ops`", "source": "`fk ops`"}, 1], [{"a": "list_ops", "source": "`fk ops`"}, 1]),
    ],
)
def test_commands_become_tools(said: object, told: object) -> None:
    assert in_tools(said) == told


def test_an_unknown_operator_is_told_in_either_language() -> None:
    with pytest.raises(UnknownTask) as caught:
        Catalog().get("rms_nrm")
    assert (caught.value.message, caught.value.hint) == (
        "no operator 'rms_nrm'; nearest: rms_norm",
        "`fk ops` lists all",
    )
    assert fault_text(caught.value).endswith("rms_norm. list_ops lists all. Call again with the name of an operator.")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_reports_and_stubs_name_no_tool_until_they_are_rendered(outcome: Outcome) -> None:
    spec = Catalog().get("softmax")
    hearing = Hearing(ValidateRequest(op="softmax", source="x"), spec, spec.cpu_cases, cpu_device())
    hearing.failed(CandidateFault(outcome, "why"))
    report = conclude(hearing, Settings(home=Path("/h"), lock_dir=Path("/l")))
    for record in (report, stubs.render(spec, "cpu")):
        said = record.model_dump(mode="json")
        assert not [tool for tool in TOOLS if tool in json.dumps(said)]
        assert "`fk stub" not in json.dumps(in_tools(said))


# -- every text of the source ------------------------------------------------------------------------------------------

ON_THE_COMMAND_LINE = ("fk_core/cli.py", "fk_core/commands.py", "fk_server/demo.py", "fk_server/__main__.py")
ONLY_OVER_MCP = ("fk_core/jobs/",)
NO_TOOL = ("`fk doctor`", "`fk serve`")


def texts(package: object) -> Iterator[tuple[str, str]]:
    """Where it stands, and each text of more than a word that is no docstring; X for what is filled in later."""
    root = Path(str(package.__file__)).parent  # type: ignore[attr-defined]
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            said = ""
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in ast.walk(node)}
                said = "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                said = node.value
            if " " in said:
                yield f"{path.relative_to(root.parent)}:{node.lineno}", said


CORE = [row for row in texts(fk_core) if not row[0].startswith((*ON_THE_COMMAND_LINE, *ONLY_OVER_MCP))]
OVER_MCP = [row for row in [*texts(fk_server), *texts(fk_core)] if row[0].startswith(("fk_server", *ONLY_OVER_MCP))]
OVER_MCP = [row for row in OVER_MCP if not row[0].startswith((*ON_THE_COMMAND_LINE, "fk_server/wording.py"))]


def options() -> dict[str, set[str]]:
    """Command of ``fk`` -> its options."""
    group = typer.main.get_command(commands.app)
    known = group.commands  # type: ignore[attr-defined]
    return {name: {o for p in found.params for o in p.opts if o.startswith("--")} for name, found in known.items()}


async def arguments(home: Path) -> dict[str, set[str]]:
    """Tool -> its arguments."""
    server = build_server(FakeHarness(settings_in(home)))  # type: ignore[arg-type]
    return {tool.name: set(tool.input_schema["properties"]) for tool in await server.list_tools()}


def test_there_are_many_texts() -> None:
    assert len(CORE) > 500
    assert len(OVER_MCP) > 100


@pytest.mark.parametrize(("where", "said"), [row for row in CORE if "fk " in row[1] or "--" in row[1]])
def test_the_core_names_commands_that_there_are_and_that_become_tools(where: str, said: str) -> None:
    named = re.findall(r"`(fk (\w+)[^`]*)`", said)
    for whole, command in named:
        assert command in options(), where
        assert f"`{whole}`" in NO_TOOL or "`" not in in_tools(f"`{whole}`"), where
    assert len(named) == len(re.findall(r"\bfk [a-z]", said)), f"{where}: write commands as `fk NAME`"
    for option in re.findall(r"--[a-z][a-z-]*", said):
        commands_named = [command for _, command in named]
        assert any(option in options()[command] for command in commands_named), f"{where}: whose is {option}?"
        assert any(f"`{o}" in NO_TOOL for o in commands_named) or option not in in_tools(said), where


@pytest.mark.anyio
async def test_the_core_names_no_tool_and_no_argument_of_one(tmp_path: Path) -> None:
    """Unless it is only ever read over MCP."""
    known = await arguments(tmp_path)
    given = "|".join(sorted({argument for some in known.values() for argument in some}))
    assert set(known) == set(TOOLS)
    assert [row for row in CORE if re.search(rf"\b({'|'.join(known)})\b|\b({given})=", row[1])] == []


@pytest.mark.anyio
async def test_the_server_names_arguments_with_the_tool_that_has_them(tmp_path: Path) -> None:
    """An error may be read behind a tool that has no such argument: each is named as ``tool(argument=...)``."""
    known = await arguments(tmp_path)
    given = "|".join(sorted({argument for some in known.values() for argument in some}))
    for where, said in OVER_MCP:
        calls = re.findall(r"\b(\w+)\(((?:[a-z_]+=[^(),]*(?:, )?)+)\)", said)
        for tool, inside in calls:
            assert set(re.findall(r"([a-z_]+)=", inside)) <= known.get(tool, set()), where
        bare = re.sub(r"\b\w+\([^()]*\)", "", said)
        assert not re.findall(rf"\b({given})=", bare), where
        assert not [command for command in re.findall(r"`fk [^`]*`", said) if command not in NO_TOOL], where


@pytest.mark.anyio
@pytest.mark.parametrize("error", ADVICE)
async def test_advice_names_no_argument_alone(error: type[FkError], tmp_path: Path) -> None:
    known = await arguments(tmp_path)
    bare = re.sub(r"\b\w+\([^()]*\)", "", ADVICE[error])
    assert not re.search(r"\b(op|source|cases|fresh|allow|dtype|out_path|wait_s|attempt)\b", bare)
    assert set(re.findall(r"\b(\w+)\(", ADVICE[error])) <= set(known)
