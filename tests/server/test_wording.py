"""Over MCP the tools are named, on the command line the commands; the texts are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fk_core import stubs
from fk_core.catalog import Catalog
from fk_core.conclude import conclude
from fk_core.errors import UnknownTask
from fk_core.fault import CandidateFault
from fk_core.hearing import Hearing
from fk_core.leases.devices import cpu_device
from fk_core.records.report import Outcome, ValidateRequest
from fk_core.settings import Settings
from fk_server.faults import fault_text
from fk_server.wording import in_tools

TOOLS = ("list_ops", "create_stub", "validate_kernel", "gpu_status")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("`fk ops` lists all", "list_ops lists all"),
        ("see `fk stub softmax`, or `fk stub OP`", "see create_stub(op='softmax'), or create_stub"),
        ("`fk validate softmax FILE`", "validate_kernel(op='softmax', source=...)"),
        ("`fk gpus`", "gpu_status"),
        ("run `fk doctor`", "run `fk doctor`"),
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
    assert fault_text(caught.value).endswith("rms_norm. list_ops lists all. Correct op and call again.")


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
