"""What clients demand of tool descriptions: flat schemas, all hints, limits and defaults in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp.types import Tool

from fk_server.app import INSTRUCTIONS, build_server
from fk_server.roots import Roots
from tests.server.fakes import FakeHarness, settings_in

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tools(tmp_path: Path) -> list[Tool]:
    return await build_server(FakeHarness(settings_in(tmp_path)), roots=Roots((tmp_path,))).list_tools()  # type: ignore[arg-type]


async def test_every_hint_is_set_so_that_no_client_needs_an_approval(tools: list[Tool]) -> None:
    for tool in tools:
        hints = tool.annotations
        assert hints is not None
        for hint in (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint):
            assert isinstance(hint, bool), tool.name
        assert hints.read_only_hint or not (hints.destructive_hint or hints.open_world_hint), tool.name


async def test_input_schemas_are_flat_and_closed(tools: list[Tool]) -> None:
    for tool in tools:
        schema = tool.input_schema
        assert set(schema) <= {"type", "properties", "required", "additionalProperties"}, tool.name
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        text = json.dumps(schema)
        for word in ("$ref", "$defs", "anyOf", "oneOf", "allOf"):
            assert word not in text, (tool.name, word)


async def test_output_schemas_have_an_object_at_the_root(tools: list[Tool]) -> None:
    for tool in tools:
        assert tool.output_schema is not None
        assert tool.output_schema["type"] == "object", tool.name


async def test_every_parameter_says_its_default_and_limits_in_words(tools: list[Tool]) -> None:
    for tool in tools:
        for name, schema in tool.input_schema["properties"].items():
            description = schema.get("description", "")
            assert description, (tool.name, name)
            if schema.get("default") not in (None, "", []):
                shown = _words(schema["default"])
                assert any(word in description for word in shown), (tool.name, name, shown)
            for limit in ("minimum", "maximum"):
                if limit in schema:
                    assert str(schema[limit]) in description, (tool.name, name)


def _words(default: Any) -> list[str]:
    if isinstance(default, bool):
        return [str(default).lower()]
    if isinstance(default, float):
        return [f"{default:g}"]
    return [str(default)]


async def test_descriptions_fit_what_clients_show(tools: list[Tool]) -> None:
    assert len(INSTRUCTIONS) < 4000
    for tool in tools:
        assert 40 < len(tool.description or "") < 2000, tool.name
        assert tool.title
        assert len(f"mcp__fk__{tool.name}") < 64
